"""A policy per environment type, imported when first asked for."""

from __future__ import annotations

import importlib

from ragen.llm_agent.backends.policies.base import Plan, Policy, UnreadableError

__all__ = ["POLICIES", "Plan", "Policy", "UnreadableError", "create_policy"]

_HERE = "ragen.llm_agent.backends.policies"

POLICIES = {
    "alfworld": f"{_HERE}.adventures:AlfWorldPolicy",
    "bandit": f"{_HERE}.arms:BanditPolicy",
    "code": f"{_HERE}.programs:CodePolicy",
    "countdown": f"{_HERE}.numbers:CountdownPolicy",
    "deepcoder": f"{_HERE}.programs:CodePolicy",
    "frozen_lake": f"{_HERE}.grids:FrozenLakePolicy",
    "game_2048": f"{_HERE}.tiles:TilePolicy",
    "metamathqa": f"{_HERE}.numbers:MathPolicy",
    "miniwob": f"{_HERE}.web:MiniWobPolicy",
    "rubikscube": f"{_HERE}.puzzles:CubePolicy",
    "search": f"{_HERE}.questions:SearchPolicy",
    "sokoban": f"{_HERE}.grids:SokobanPolicy",
    "sudoku": f"{_HERE}.puzzles:SudokuPolicy",
    "terminal": f"{_HERE}.programs:TerminalPolicy",
    "textworld": f"{_HERE}.adventures:TextWorldPolicy",
    "webshop": f"{_HERE}.shop:ShopPolicy",
}


def create_policy(env_type: str) -> Policy:
    """The policy of an environment type; other types get one that chooses among the actions the prompt names."""
    if env_type not in POLICIES:
        return Policy()
    module_name, _, class_name = POLICIES[env_type].partition(":")
    return getattr(importlib.import_module(module_name), class_name)()
