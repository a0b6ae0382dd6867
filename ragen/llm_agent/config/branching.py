"""``agent_proxy.branching``: whether rollouts are trees, and where they branch; see ``docs/branching.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ragen.errors import ConfigError
from ragen.settings import function_at, key, read, setting

SECTION = "agent_proxy.branching"
EVERY_TURN, AFTER_TURN, ENTROPY = KINDS = ("every_turn", "after_turn", "entropy")
TREE, GRPO = ADVANTAGES = ("tree", "grpo")
MODES = ("train", "val")
KEYS = ("when", "turns", "threshold", "width", "max_leaves", "budget_tokens", "advantages", "modes")


@dataclass(frozen=True)
class BranchingSettings:
    """Where rollouts branch; the keys are those under ``agent_proxy.branching``.

    Attributes:
        when: ``every_turn``, ``after_turn``, ``entropy``, or the path of a function, ``package.module:function``, which
            is called with an :class:`~ragen.llm_agent.trees.policy.OpenNode` and returns a bool or a number of replies.
        turns: For ``after_turn``: the number of turns played; 0 is the reset.
        threshold: For ``entropy``: the minimum surprise of the last reply, in nats per token.
        width: Number of replies at a branching point.
        max_leaves: Maximum number of trajectories per tree.
        budget_tokens: A tree with this many tokens of prompts and replies stops branching; its leaves continue.
        advantages: ``tree``: relative to siblings; ``grpo``: relative to all trajectories of the group.
        modes: Which rollouts branch: ``train``, ``val``.
        by_std: Whether advantages are divided by the siblings' standard deviation:
            ``algorithm.norm_adv_by_std_in_grpo``, as for chains.
        decide: The function that ``when`` names; None for the built-in rules.
    """

    when: str
    SECTION: ClassVar[str] = SECTION
    turns: tuple[int, ...] = (1,)
    threshold: float = 0.0
    width: int = key(2, low=2)
    max_leaves: int = key(8, low=1)
    budget_tokens: int | None = key(None, low=1)
    advantages: str = key(TREE, allowed=ADVANTAGES)
    modes: tuple[str, ...] = key(("train",), allowed=MODES)
    by_std: bool = key(True, "algorithm.norm_adv_by_std_in_grpo")
    decide: Callable[[Any], Any] | None = None

    @classmethod
    def read(cls, config: Any) -> BranchingSettings | None:
        """Read and check the keys; None if rollouts do not branch.

        Raises:
            ConfigError: A key is unknown, has an invalid value, or conflicts with another key.
        """
        given = setting(config, "agent_proxy.branching", Mapping, {})
        for name in given:
            if name not in KEYS:
                raise ConfigError(f"configuration key '{SECTION}.{name}' is not known; it has {', '.join(KEYS)}.")
        when = setting(config, "agent_proxy.branching.when", str, None)
        if when is None:
            return None
        settings = read(
            cls,
            config,
            when=when,
            turns=_turns(config, when),
            threshold=_threshold(config, when),
            decide=None if when in KINDS else _function(when),
        )
        if not settings.modes:
            raise ConfigError(f"{SECTION}.modes is []; expected some of train, val.")
        _check_others(config)
        return settings


def refuse_branching(config: Any, who: str) -> None:
    """Check that branching is off, for players that do not support it.

    Args:
        config: The whole configuration.
        who: The player.

    Raises:
        ConfigError: Branching is on.
    """
    if BranchingSettings.read(config) is not None:
        raise ConfigError(
            f"{SECTION}.when is set, and {who} plays only chains, each from its reset; expected null, or "
            "trainer.backend=tiny, which trains on trees."
        )


def _check_others(config: Any) -> None:
    """Check that no setting is incompatible with branching."""
    for other in ("use_parallel_envs", "quirks"):
        if setting(config, other, bool, False):
            raise ConfigError(
                f"{SECTION}.when is set, and {other} is true, which supports only chains; set one of them."
            )


def _turns(config: Any, when: str) -> tuple[int, ...]:
    turns = tuple(setting(config, "agent_proxy.branching.turns", Sequence, [1]))
    if not turns or any(not isinstance(turn, int) or isinstance(turn, bool) or turn < 0 for turn in turns):
        raise ConfigError(f"{SECTION}.turns is {list(turns)!r}; expected numbers of turns, 0 for the reset.")
    most = setting(config, "agent_proxy.max_turn", int, None)
    if when == AFTER_TURN and most is not None and min(turns) >= most:
        raise ConfigError(
            f"{SECTION}.turns is {list(turns)!r}, and agent_proxy.max_turn is {most}, so no turn follows there. "
            f"Expected numbers from 0, the reset, to {most - 1}."
        )
    return turns


def _threshold(config: Any, when: str) -> float:
    threshold = setting(config, "agent_proxy.branching.threshold", float, None)
    if when == ENTROPY and (threshold is None or threshold <= 0):
        raise ConfigError(f"{SECTION}.threshold is {threshold!r}; {ENTROPY!r} needs nats per token, above 0.")
    return threshold or 0.0


def _function(path: str) -> Callable[[Any], Any]:
    """The function of a path."""
    if ":" not in path:
        raise ConfigError(
            f"{SECTION}.when is {path!r}; expected one of {', '.join(KINDS)}, or package.module:function."
        )
    return function_at(path, f"{SECTION}.when")
