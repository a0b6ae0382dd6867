"""One live environment and the operations on it: build, reset, play, save, replay, close.

A replica is the only live copy of its environment. Every operation of a host on a replica is a function here, called in
the main process and in workers alike.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pickle import PicklingError
from time import perf_counter
from typing import Any

from envlanes.episode import generators
from envlanes.episode.global_rng import EnvRng
from envlanes.episode.journal import Change, EpisodeJournal, difference
from envlanes.episode.outcome import Overdue
from envlanes.episode.pickled import Pickled, unpicklable_part
from envlanes.episode.spec import EnvSpec
from envlanes.errors import described_with_place
from envlanes.interrupts import let_signals_pass

log = logging.getLogger(__name__)

CHEAP_SAVE = 50.0  # a snapshot is due after turns that took this many times its own cost
DEAR_SAVE = 10.0  # a dearer one, if they took this many times its cost,
REPLAY_S = 0.005  # and more than this many seconds,
MORE_THAN_ONE = 1.5  # and more than one turn, with room for timing noise
DEAR_RESET_S = 1e-3  # seconds of a reset from which a group's members load the snapshot of its first one


@dataclass(slots=True)
class Replica:
    """An environment in this process.

    Attributes:
        spec: Describes how to build it.
        play: The game's ``play``, cached.
        env: The environment; None until it is first needed.
        rng: Its own state of the global generators; None if it does not use them.
        was_reset: Whether an episode has begun on it.
        has_snapshots: Whether its class declares ``save`` and ``load``; known once it is built.
        is_loading: Whether a snapshot is being loaded.
        saves_midway: Whether snapshots may be taken at any time, not only after a reset.
        unsaved_s: Seconds of the turns since its last snapshot.
        turn_s: Seconds of the last turn.
        save_s: Seconds that a snapshot takes: the last one, or at most twice as many as were known before.
        saved: A snapshot not yet sent to the main process.
    """

    spec: EnvSpec
    play: Callable[[Any, Any], Any]
    env: Any = None
    rng: EnvRng | None = None
    was_reset: bool = False
    has_snapshots: bool = False
    is_loading: bool = False
    saves_midway: bool = False
    unsaved_s: float = 0.0
    turn_s: float = 0.0
    save_s: float = 0.0
    saved: bytes | None = None


def build_if_needed(replica: Replica) -> None:
    """Build the environment unless it exists."""
    replica.is_loading = False
    if replica.env is not None:
        return
    spec = replica.spec
    replica.rng = EnvRng(0) if spec.uses_global_rng else None
    replica.was_reset = False
    with replica.rng.in_place() if replica.rng else nullcontext():
        replica.env = spec.game.build(spec)
    replica.has_snapshots = spec.game.has_snapshots(replica.env)
    replica.saves_midway = replica.has_snapshots and spec.game.saves_midway(replica.env)


def reset(replica: Replica, seed: int | None, options: dict[str, Any] | None) -> Any:
    """Begin an episode; returns the first observation."""
    if replica.rng is not None and seed is not None:
        replica.rng.seed(seed)
    with replica.rng.in_place() if replica.rng else nullcontext():
        observation = replica.spec.game.reset(replica.env, seed, options)
    replica.was_reset = True
    return observation


def generator_states(replica: Replica, is_seeded: bool) -> Any:
    """The state of the generators before a reset; without a seed, the global ones are first seeded at random.

    None if the seed decides all of them, or the class declares snapshots, since one is taken after the reset.
    """
    if replica.has_snapshots:
        return None
    if is_seeded:
        states = replica.spec.game.generator_state(replica.env, is_seeded=True)
        return (None, states) if states else None
    if replica.rng is not None and not replica.was_reset:
        replica.rng.seed(None)
    return (
        replica.rng.state() if replica.rng is not None else None,
        replica.spec.game.generator_state(replica.env),
    )


def _restore_generators(replica: Replica, before: tuple[Any, Any]) -> None:
    outer, own = before
    if replica.rng is not None and outer is not None:
        replica.rng.restore(outer)
    if own is not None:
        generators.restore(replica.env, own)


def play(replica: Replica, item: tuple[int, Any]) -> Any:
    """Play a turn with the environment's own state of the global generators in place."""
    if replica.rng is None:
        return replica.play(replica.env, item[1])
    with replica.rng.in_place():
        return replica.play(replica.env, item[1])


def call(replica: Replica, item: tuple[int, Change]) -> Any:
    """Apply a change between two turns; returns its result."""
    build_if_needed(replica)
    with replica.rng.in_place() if replica.rng else nullcontext():
        return replica.spec.game.apply(replica.env, item[1])


def _repeat(replica: Replica, change: Change) -> None:
    """Apply a change again; one that raised may have had an effect all the same, and raises again."""
    try:
        call(replica, (0, change))
    except Exception:
        log.debug("a change of env %d raised in its replay", replica.spec.env_id, exc_info=True)


def replay(replica: Replica, journal: EpisodeJournal, tick: Callable[[], None]) -> Any:
    """Rebuild an episode on a fresh environment, and compare each turn with its record.

    The previous environment is closed. ``tick`` is called before each entry, which has a deadline of its own.

    Returns:
        The observation, or the :class:`~envlanes.episode.journal.Divergence`.
    """
    if replica.env is not None:
        close(replica)
    build_if_needed(replica)
    for name, value in journal.settings.items():
        call(replica, (0, Change(name, (value,), is_set=True)))
    if not journal.has_begun:
        return None
    return _replay_episode(replica, journal, tick)


def _replay_episode(replica: Replica, journal: EpisodeJournal, tick: Callable[[], None]) -> Any:
    game, turn = replica.spec.game, journal.left_out
    if journal.snapshots:
        _, state, digest = journal.snapshots[0]
        (shown, is_observed), found = load(replica, state), None
        if is_observed and digest is not None:
            found = difference(turn - 1, ("digest",), (digest,), (game.digest(shown),))
    else:
        if journal.before is not None:
            _restore_generators(replica, journal.before)
        shown = reset(replica, journal.seed, journal.options)
        found = difference(-1, ("digest",), (journal.digest,), (game.digest(shown),))
    for entry in journal.entries:
        if found is not None:
            break
        tick()
        if isinstance(entry, Change):
            _repeat(replica, entry)
            continue
        result = play(replica, (0, entry.action))
        found = difference(turn, game.recorded, entry.recorded, game.record(result))
        shown = result.observation
        turn += 1
    if found is not None and journal.snapshots:
        return found._replace(snapshot=journal.left_out)
    return found or shown


# Snapshots


def save(replica: Replica, shown: Any) -> bytes:
    """The whole state of an environment, including its states of the global generators, and its observation.

    Raises:
        Exception: ``save`` raised, or its result cannot be pickled.
    """
    with replica.rng.in_place() if replica.rng else nullcontext():
        state = replica.spec.game.save(replica.env)
    try:
        return Pickled.of((state, replica.rng.state() if replica.rng is not None else None, shown)).pickled
    except Exception as error:
        part = unpicklable_part(state, "save()")
        raise PicklingError(f"{part} cannot be pickled: {described_with_place(error)}") from error


def saved_or_none(replica: Replica, shown: Any) -> bytes | None:
    """The same where a snapshot only saves time; None if it failed, which is logged, and is not tried again."""
    try:
        return save(replica, shown)
    except Exception:
        log.warning("%s could not be saved, and is replayed where it is lost", replica.spec.describe(), exc_info=True)
        replica.has_snapshots = replica.saves_midway = False
        return None


def load(replica: Replica, saved: bytes) -> tuple[Any, bool]:
    """Load a snapshot into a newly built environment.

    Returns:
        The observation, and whether the environment rendered it; otherwise it is the one saved with the snapshot.
    """
    state, outer, shown = Pickled(saved).open()
    game = replica.spec.game
    if replica.rng is not None:
        replica.rng.restore(outer)
    with replica.rng.in_place() if replica.rng else nullcontext():
        replica.is_loading = True
        game.load(replica.env, state)
        replica.is_loading = False
        now = game.observe(replica.env)
    replica.was_reset = True
    return (shown, False) if now is None else (now, True)


def save_if_due(replica: Replica, shown: Any, seconds: float, begins_unseeded: bool) -> None:
    """Take a snapshot after a turn or a reset if replaying the turns since the last one would cost more.

    It must cost more than the snapshot, by far or by more than a usual turn: storing a snapshot costs the main process
    time too. The snapshot is left in ``replica.saved``.

    An episode that began without a seed, and an environment that cannot be replayed, get one at the beginning. Since
    the clock decides when snapshots are taken, a ``save`` that raises only means that there is no snapshot.

    Args:
        replica: The environment, whose class declares snapshots.
        shown: Its current observation.
        seconds: Seconds that the turn took.
        begins_unseeded: Whether an episode has just begun without a seed.
    """
    usual_s, replica.turn_s = min(replica.turn_s, seconds), seconds
    replica.unsaved_s += seconds
    if not (begins_unseeded or replica.saves_midway):
        return
    is_needed = begins_unseeded or not replica.spec.is_replayable
    if not (is_needed or is_save_due(replica.unsaved_s, usual_s, replica.save_s)):
        return
    start = perf_counter()
    replica.saved = saved_or_none(replica, shown)
    took, before = perf_counter() - start, replica.save_s
    replica.save_s, replica.unsaved_s = min(took, 2 * before or took), 0.0  # a busy machine may delay one by far


def is_save_due(unsaved_s: float, usual_s: float, save_s: float) -> bool:
    """Whether a snapshot pays, by the seconds of turns since the last one, of a usual turn, and of a snapshot.

    The cost of a snapshot is 0 until one was taken; it could be dear then.
    """
    cheap = CHEAP_SAVE * save_s or math.inf
    return unsaved_s >= max(DEAR_SAVE * save_s, min(cheap, max(REPLAY_S, MORE_THAN_ONE * usual_s)))


def close(replica: Replica) -> None:
    """Close the environment; a failure to close is logged."""
    env, replica.env = replica.env, None
    ends = getattr(env, "close", None)
    if ends is None:
        return
    try:
        with replica.rng.in_place() if replica.rng else nullcontext():
            ends()
    except Overdue as error:
        log.warning("%s %s while it was closed", replica.spec.describe(), error)
    except BaseException as error:
        let_signals_pass(error)
        log.warning("%s failed to close", replica.spec.describe(), exc_info=True)
