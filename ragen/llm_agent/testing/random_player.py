"""Plays a manager without a model, with valid, random and malformed actions from a seed.

Inputs are a function of the seed, the environment's id, the turn, the state and the given examples, so equal managers
get equal inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ragen.llm_agent.backends.policies import POLICIES, decide
from ragen.llm_agent.backends.prompt import Prompt
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.tools.examples import ODD, TEXTS, Examples

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


class RandomPlayer:
    """Draws inputs for ``EnvStateManager.step``, in a new order each turn, sometimes for a part of the environments."""

    def __init__(
        self,
        seed: int = 0,
        odd: float = 0.3,
        thoughtful: float = 0.5,
        most: int = 5,
        examples: Mapping[str, Examples] | None = None,
    ) -> None:
        """Take the settings.

        Args:
            seed: The only source of randomness.
            odd: The fraction of malformed inputs.
            thoughtful: The fraction of inputs that follow the environment's scripted policy, or examples.
            most: Maximum number of actions of a well-formed input.
            examples: By tag, examples for environments without a scripted policy.
        """
        self._seed = seed
        self._odd = odd
        self._thoughtful = thoughtful
        self._most = most
        self._examples = examples or {}

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
        actions = self._actions(manager, cache, turn, rng)
        if rng.random() < self._odd:
            actions = _spoilt(actions, rng)
        said = f"<answer>{' || '.join(actions)}</answer>"
        return {
            "env_id": env_id,
            "actions": actions,
            "llm_response": said,
            "llm_raw_response": f"<think></think>{said}",
        }

    def _actions(self, manager: EnvStateManager, cache: dict[str, Any], turn: int, rng: Random) -> list[str]:
        env_id = cache["env_id"]
        entry = manager.envs[env_id]
        env_type = manager.sys_config["custom_envs"][cache["tag"]]["env_type"]
        is_thoughtful = rng.random() < self._thoughtful
        names = _action_names(entry)
        examples = None if env_type in POLICIES else self._examples.get(cache["tag"])
        most = self._most
        if examples is None:
            choices = names or (*TEXTS, *ODD)
        else:
            choices = examples.choices(entry["env"], names, (self._seed, turn, env_id), is_thoughtful)
            if len(choices) == 1 or (is_thoughtful and not names):
                most = 1  # a turn's info is that of its last action
        prompt = Prompt(
            state=cache["history"][-1]["state"],
            symbols=getattr(entry["config"], "grid_vocab", None) or {},
            actions=choices,
            limit=max(1, min(most, cache["history"][-1]["actions_left"])),
        )
        return list(decide(env_type, prompt, rng, thoughtful=is_thoughtful).actions)


def _action_names(entry: dict[str, Any]) -> tuple[str, ...]:
    """The names in the action lookup; empty for environments that take any text."""
    if not hasattr(entry["config"], "action_lookup"):
        return ()
    lookup = entry["config"].action_lookup or entry["env"].config.action_lookup  # some are created by reset
    return tuple(lookup.values())


def _spoilt(actions: list[str], rng: Random) -> list[str]:
    odd = rng.choice(ODD_ACTIONS)
    kinds: tuple[list[str], ...] = (
        [],
        [odd],
        [odd, *actions],
        [*actions, odd],
        [action.swapcase() for action in actions],
        [f" {action}" for action in actions],
        actions * 9,
    )
    return rng.choice(kinds)
