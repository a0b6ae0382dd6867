"""A policy per environment type, imported on first use."""

from __future__ import annotations

import importlib

from ragen.llm_agent.backends.policies.base import Plan, Policy, UnreadableError

__all__ = ["POLICIES", "Plan", "Policy", "UnreadableError", "create_policy"]

_HERE = "ragen.llm_agent.backends.policies"

POLICIES = {
    "alfworld": f"{_HERE}.tasks:AlfWorldPolicy",
    "bandit": f"{_HERE}.games:BanditPolicy",
    "code": f"{_HERE}.tasks:CodePolicy",
    "countdown": f"{_HERE}.games:CountdownPolicy",
    "deepcoder": f"{_HERE}.tasks:CodePolicy",
    "frozen_lake": f"{_HERE}.games:FrozenLakePolicy",
    "game_2048": f"{_HERE}.games:TilePolicy",
    "metamathqa": f"{_HERE}.games:MathPolicy",
    "miniwob": f"{_HERE}.tasks:MiniWobPolicy",
    "rubikscube": f"{_HERE}.games:CubePolicy",
    "search": f"{_HERE}.tasks:SearchPolicy",
    "sokoban": f"{_HERE}.games:SokobanPolicy",
    "sudoku": f"{_HERE}.games:SudokuPolicy",
    "terminal": f"{_HERE}.tasks:TerminalPolicy",
    "textworld": f"{_HERE}.tasks:TextWorldPolicy",
    "webshop": f"{_HERE}.tasks:ShopPolicy",
}


def create_policy(env_type: str) -> Policy:
    """The policy of an environment type; the default chooses among the actions that the prompt names."""
    if env_type not in POLICIES:
        return Policy()
    module_name, _, class_name = POLICIES[env_type].partition(":")
    return getattr(importlib.import_module(module_name), class_name)()
