"""Plays a manager without a model, with valid, random and malformed actions from a seed.

Inputs are a function of the seed, the environment's id, the turn and the state, so equal managers get equal inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from ragen.llm_agent.backends.policies import POLICIES, Prompt, decide
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.tools.examples import ODD, TEXTS, named_in

ODD_ACTIONS = (
    *ODD,
    " ",
    "9 ** 9 ** 9",
    "1 / 0",
    "search[]",
    "search[<a> lamp]",
    "click[nothing of the kind] please",
    "place 99 at row 0 col -1",
    "\u4e0a\u2191 \N{SNOWMAN}",
    "x" * 3000,
)
_SPOILT, _GOOD, _MOST = 0.3, 0.5, 5  # fractions of malformed inputs and of good ones; actions of a well-formed one


class RandomPlayer:
    """Draws inputs for ``EnvStateManager.step``, in a new order each turn, sometimes for a part of the environments."""

    def __init__(self, seed: int = 0) -> None:
        """Take the only source of randomness."""
        self._seed = seed

    def inputs(self, manager: EnvStateManager, caches: Sequence[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
        """Inputs for the environments of these caches, or some of them.

        Args:
            manager: The manager of the environments.
            caches: Rollout caches of environments whose episode is not over.
            turn: Index of the turn.
        """
        rng = Random(f"{self._seed} {turn}")
        chosen = sorted(caches, key=lambda cache: cache["env_id"])
        if turn % 3 == 1:
            rng.shuffle(chosen)
        if turn % 4 == 3 and len(chosen) > 2:
            chosen = chosen[len(chosen) // 3 :]
        return [self._input(manager, cache, turn) for cache in chosen]

    def _input(self, manager: EnvStateManager, cache: dict[str, Any], turn: int) -> dict[str, Any]:
        env_id = cache["env_id"]
        rng = Random(f"{self._seed} {turn} {env_id}")
        actions = _actions(manager, cache, rng)
        if rng.random() < _SPOILT:
            odd = rng.choice(ODD_ACTIONS)
            swapped, padded = [action.swapcase() for action in actions], [f" {action}" for action in actions]
            actions = rng.choice([[], [odd], [odd, *actions], [*actions, odd], swapped, padded, actions * 9])
        said = f"<answer>{' || '.join(actions)}</answer>"
        return {
            "env_id": env_id,
            "actions": actions,
            "llm_response": said,
            "llm_raw_response": f"<think></think>{said}",
        }


def _actions(manager: EnvStateManager, cache: dict[str, Any], rng: Random) -> list[str]:
    """Actions of the scripted policy or the environment's own example, or chosen among its names, examples or texts."""
    entry, config = manager.envs[cache["env_id"]], manager.sys_config["custom_envs"][cache["tag"]]
    env_type, is_good = config["env_type"], rng.random() < _GOOD
    if is_good and env_type not in POLICIES and (example := manager.example_action(cache["env_id"], rng)):
        return [example]
    lookup = getattr(entry["config"], "action_lookup", {})
    if lookup is None:  # it is created by reset
        lookup = entry["env"].config.action_lookup
    named, state = named_in(config.get("env_instruction") or ""), cache["history"][-1]
    prompt = Prompt(
        state=state["state"],
        symbols=getattr(entry["config"], "grid_vocab", None) or {},
        actions=tuple(lookup.values()) or (named if is_good else ()) or (*named, *TEXTS, *ODD),
        limit=max(1, min(_MOST, state["actions_left"])),
    )
    return list(decide(env_type, prompt, rng, thoughtful=is_good).actions)
