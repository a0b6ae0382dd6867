"""Whether two managers give equal rollouts: all that can be seen of an episode, written down fact by fact.

A :class:`Recording` is a list of notes, and a note a list of facts, each a place ("turn 2, env 5, history[-2].reward")
and what was found there. Two recordings are equal if all their facts are, without tolerance: numbers by type and exact
value, images by mode, size and pixels, lists and dicts with their order. The first fact that differs is where to look.

A note of nothing but Python's own values is kept pickled. Equal bytes are equal facts; where they differ, the facts are
written out and decide.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from ragen.errors import around_difference
from ragen.llm_agent.es_manager import EnvStateManager

_SHOWN = 160  # characters of a fact in messages


class Fact(NamedTuple):
    """One thing that was seen.

    Attributes:
        place: Place of the value, such as ``"turn 2, env 5, history[-2].reward"``.
        value: The value with its type, such as ``"float -0.1"``.
    """

    place: str
    value: str


class Player(Protocol):
    """The facts that decide a manager's inputs."""

    def inputs(self, manager: EnvStateManager, caches: Sequence[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
        """Inputs of ``EnvStateManager.step`` for some or all of the environments that ``caches`` are of."""


BeforeTurn = Callable[[EnvStateManager, int], None]


@dataclass(frozen=True)
class Difference:
    """The first difference between two recordings.

    Attributes:
        place: The first place with different facts.
        expected: Value of the first recording.
        got: Value of the second one.
    """

    place: str
    expected: str
    got: str

    def __str__(self) -> str:
        was, is_now = around_difference(self.expected, self.got, _SHOWN)
        return f"{self.place}: {was} became {is_now}"


class Recording:
    """A recording of a manager, in order.

    Attributes:
        notes: The notes: a place, and its facts, or the bytes that they can be read from.
        seconds: Time spent in ``reset`` and ``step``; no part of the comparison.
        episodes: Number of episodes that were begun.
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.notes: list[tuple[str, list[Fact] | bytes]] = []
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
        place = f"episode {self.episodes}, {place}"
        self.notes.append((place, _plain(value) or list(describe(value, place))))

    def first_difference(self, other: Recording) -> Difference | None:
        """The first difference to another recording; None if they are equal."""
        one: Any
        another: Any
        for one, another in zip_longest(self.notes, other.notes, fillvalue=("", [])):
            if one == another:
                continue
            for mine, theirs in zip_longest(facts_of(one), facts_of(another)):
                if mine != theirs:
                    was, is_now = (None if fact is None else fact.value for fact in (mine, theirs))
                    if mine and theirs and mine.place != theirs.place:
                        is_now = f"nothing (but {theirs.place}: {theirs.value})"
                    return Difference((mine or theirs).place, was or "nothing", is_now or "nothing")
        return None


def facts_of(note: tuple[str, list[Fact] | bytes]) -> list[Fact]:
    """The facts of a note, in order."""
    place, found = note
    return list(describe(pickle.loads(found), place)) if isinstance(found, bytes) else found


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
    seen = recording if recording is not None else Recording()
    seen.episodes += 1
    active = {cache["env_id"]: cache for cache in seen.timed(manager.reset, seed)}
    seen.note("reset", list(active.values()))
    seen.note("reset, status", [entry["status"] for entry in manager.envs])
    seen.note("seed_counter", manager.seed_counter)
    for turn in range(turns):
        if not active:
            break
        inputs = player.inputs(manager, list(active.values()), turn)
        if before_turn is not None:
            before_turn(manager, turn)
        _play(manager, inputs, active, seen, f"turn {turn}")
    seen.note("render", manager.render())
    seen.note("final", manager.get_rollout_states())
    return seen


def _play(
    manager: EnvStateManager,
    inputs: list[dict[str, Any]],
    active: dict[int, dict[str, Any]],
    seen: Recording,
    where: str,
) -> None:
    """Play one turn; removes those whose episode ends from ``active``."""
    before = dict(active)
    outputs = seen.timed(manager.step, inputs)
    seen.note(f"{where}, inputs", inputs)
    seen.note(f"{where}, outputs", [cache["env_id"] for cache in outputs])
    for given in inputs:
        env_id = given["env_id"]
        cache = before[env_id]
        del active[env_id]
        place = f"{where}, env {env_id} ({cache['tag']})"
        for index in (-2, -1):
            seen.note(f"{place}, history[{index}]", cache["history"][index])
        seen.note(f"{place}, penalty", cache["penalty"])
        seen.note(f"{place}, status", manager.envs[env_id]["status"])
    active.update((cache["env_id"], cache) for cache in outputs)


def describe(value: Any, place: str = "") -> Iterator[Fact]:
    """The facts of a value and of its parts.

    Two values with the same facts are equal in type and content; NaN equals itself. An object of another type is
    described by its type and its attributes.
    """
    yield from _describe(value, place, ())


def _describe(value: Any, place: str, inside: tuple[int, ...]) -> Iterator[Fact]:
    kind = type(value).__name__
    if id(value) in inside:
        yield Fact(place, f"{kind}, the one it is part of")
        return
    children = _children(value)
    if children is None:
        yield Fact(place, _leaf(value, kind))
        return
    yield Fact(place, f"{kind} of {len(children)}" + (f": {', '.join(children)}" if _has_names(value) else ""))
    for name, child in children.items():
        yield from _describe(child, f"{place}{name}", (*inside, id(value)))


class _Plain(pickle.Pickler):
    """Takes Python's own values alone, and writes each out where it stands, whether or not it stood before."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.fast = True

    def reducer_override(self, value: Any) -> Any:
        raise pickle.PicklingError(type(value).__name__)


def _plain(value: Any) -> bytes | None:
    """A value of nothing but Python's own types as bytes, the same for the same facts alone; None for any other."""
    written = io.BytesIO()
    try:
        _Plain(written).dump(value)
    except (pickle.PicklingError, ValueError, RecursionError):
        return None
    return written.getvalue()


def _has_names(value: Any) -> bool:
    return not isinstance(value, list | tuple | np.ndarray)


def _children(value: Any) -> dict[str, Any] | None:
    """The parts of a value by their access path; None if it has none."""
    if isinstance(value, Mapping):
        return {f".{key}" if isinstance(key, str) else f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        return {f"[{index}]": part for index, part in enumerate(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Image.Image | np.ndarray | np.generic | type) or not hasattr(value, "__dict__"):
        return None
    return {f".{name}": part for name, part in vars(value).items()}


def _leaf(value: Any, kind: str) -> str:
    if isinstance(value, Image.Image):
        return f"image {value.mode} {value.width}x{value.height} {_digest(value.tobytes())}"
    if isinstance(value, np.ndarray):
        return f"{kind} {value.dtype} {value.shape} {_digest(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, set | frozenset):
        return f"{kind} {sorted(map(repr, value))}"
    return kind if type(value).__repr__ is object.__repr__ else f"{kind} {value!r}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
