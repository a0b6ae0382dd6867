"""Whether two managers give equal rollouts: all that can be seen of an episode, written down fact by fact.

A fact is a place ("turn 2, env 5, history[-2].reward") and what was found there. Two recordings are equal if all their
facts are, without tolerance: numbers by type and exact value, images by mode, size and pixels, lists and dicts with
their order. The first fact that differs is where to look.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
from PIL import Image

from ragen.errors import around_difference
from ragen.llm_agent.es_manager import EnvStateManager

_SHOWN = 160  # characters of a fact in messages


class Player(Protocol):
    """Decides a manager's inputs."""

    def inputs(self, manager: EnvStateManager, caches: Sequence[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
        """Inputs of ``EnvStateManager.step`` for some or all of the environments that ``caches`` are of."""


BeforeTurn = Callable[[EnvStateManager, int], None]


class Recording:
    """A recording of a manager, in order.

    Attributes:
        facts: Places, each with the value that was there and its type, such as ``"float -0.1"``.
        seconds: Time spent in ``reset`` and ``step``; no part of the comparison.
        episodes: Number of episodes that were begun.
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.facts: list[tuple[str, str]] = []
        self.seconds = 0.0
        self.episodes = 0

    def timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call something, and count the time it takes."""
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - start

    def note(self, place: str, value: Any) -> None:
        """Write down a value as it is now, however deep it is."""
        self.facts += describe(value, f"episode {self.episodes}, {place}")

    def first_difference(self, other: Recording) -> str:
        """The first difference to another recording; empty if they are equal."""
        for mine, theirs in zip_longest(self.facts, other.facts, fillvalue=("", "nothing")):
            if mine != theirs:
                found = theirs[1] if mine[0] in ("", theirs[0]) else f"nothing (but {theirs[0]}: {theirs[1]})"
                was, is_now = around_difference(mine[1], found, _SHOWN)
                return f"{mine[0] or theirs[0]}: {was} became {is_now}"
        return ""


def record_episode(
    manager: EnvStateManager,
    player: Player,
    turns: int,
    seed: int | None = None,
    before_turn: BeforeTurn | None = None,
    recording: Recording | None = None,
) -> Recording:
    """Play an episode and record everything that the manager shows.

    Args:
        manager: The open manager.
        player: Makes the inputs; equal states must get equal inputs.
        turns: Maximum number of steps.
        seed: Passed to ``reset``.
        before_turn: Called with the manager and the turn's index before each turn, to disturb it.
        recording: The recording to extend; None for a new one.

    Returns:
        The recording.
    """
    seen = recording or Recording()
    seen.episodes += 1
    active = seen.timed(manager.reset, seed)
    seen.note("reset", active)
    seen.note("reset, status", [entry["status"] for entry in manager.envs])
    seen.note("seed_counter", manager.seed_counter)
    for turn in range(turns):
        if not active:
            break
        inputs = player.inputs(manager, active, turn)
        if before_turn is not None:
            before_turn(manager, turn)
        outputs = seen.timed(manager.step, inputs)
        seen.note(f"turn {turn}, inputs", inputs)
        seen.note(f"turn {turn}, outputs", [cache["env_id"] for cache in outputs])
        stepped = {given["env_id"] for given in inputs}
        for cache in active:
            if (env_id := cache["env_id"]) in stepped:
                place = f"turn {turn}, env {env_id} ({cache['tag']})"
                seen.note(f"{place}, history[-2:]", cache["history"][-2:])
                seen.note(f"{place}, penalty", cache["penalty"])
                seen.note(f"{place}, status", manager.envs[env_id]["status"])
        active = [cache for cache in active if cache["env_id"] not in stepped] + outputs
    seen.note("render", manager.render())
    seen.note("final", manager.get_rollout_states())
    return seen


def describe(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The facts of a value and of its parts.

    Two values with the same facts are equal in type and content; NaN equals itself. An object of another type is
    described by its type and its attributes.
    """
    kind = type(value).__name__
    if isinstance(value, Image.Image):
        yield place, f"image {value.mode} {value.width}x{value.height} {_digest(value.tobytes())}"
        return
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield place, f"{kind} {value.dtype} {value.shape} {_digest(np.ascontiguousarray(value).tobytes())}"
        return
    if isinstance(value, set | frozenset):
        yield place, f"{kind} {sorted(map(repr, value))}"
        return
    if isinstance(value, Mapping):
        parts = {f".{key}" if isinstance(key, str) else f"[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, list | tuple | np.ndarray):
        parts = {f"[{index}]": part for index, part in enumerate(value)}
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = {f".{name}": part for name, part in vars(value).items()}
    else:
        yield place, kind if type(value).__repr__ is object.__repr__ else f"{kind} {value!r}"
        return
    yield place, f"{kind} of {len(parts)}"
    for name, part in parts.items():
        yield from describe(part, f"{place}{name}")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
