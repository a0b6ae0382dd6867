"""One environment where it lives, and what is done to it there: built, reset, played, saved, replayed, closed.

A replica is the only live copy of its environment. Everything that a host does with one is a function here, called the
same in the main process and in workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ragen.parallel.episode.global_rng import EnvRng
from ragen.parallel.episode.journal import Change, EpisodeJournal, difference
from ragen.parallel.episode.outcome import Overdue
from ragen.parallel.episode.pickled import Pickled
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.interrupts import let_signals_pass

log = logging.getLogger(__name__)

REPLAY_S = 0.005  # seconds of turns that are replayed sooner than saved
DEAR_SAVE = 10.0  # times a snapshot's own cost that the turns must have taken which it saves from being replayed
MORE_THAN_ONE = 1.5  # usual turns that are replayed sooner than saved: one, as exactly as turns can be timed
DEAR_RESET_S = 1e-3  # seconds of a reset from which members of a group load what its first one saved


@dataclass(slots=True)
class Replica:
    """An environment in this process.

    Attributes:
        spec: What builds it.
        play: The game's ``play``, kept at hand.
        env: The environment; None until it is first needed.
        rng: Its own state of the global generators; None where it draws from none.
        was_reset: Whether an episode has begun on it.
        is_slow: Whether its processor time is looked at; looked at once, and then as long as it is.
        has_snapshots: Whether its class declares ``save`` and ``load``; known once it is built.
        saves_midway: Whether they may be of any moment; else of the one after a reset.
        unsaved_s: Seconds of the turns since its last snapshot.
        turn_s: Seconds of the last turn.
        save_s: What that snapshot cost.
        saved: A snapshot that is still to be handed on.
    """

    spec: EnvSpec
    play: Callable[[Any, Any], Any]
    env: Any = None
    rng: EnvRng | None = None
    was_reset: bool = False
    is_slow: bool = True
    has_snapshots: bool = False
    saves_midway: bool = False
    unsaved_s: float = 0.0
    turn_s: float = 0.0
    save_s: float = 0.0
    saved: bytes | None = None


def build_if_needed(replica: Replica) -> None:
    """Build the environment where it is not there yet."""
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
    """Begin an episode; the first observation."""
    if replica.rng is not None and seed is not None:
        replica.rng.seed(seed)
    with replica.rng.in_place() if replica.rng else nullcontext():
        observation = replica.spec.game.reset(replica.env, seed, options)
    replica.was_reset = True
    return observation


def generators(replica: Replica) -> Any:
    """The state of the generators before a reset without a seed; the global ones begin at random the first time.

    None where the class declares snapshots, one of which is taken after the reset.
    """
    if replica.has_snapshots:
        return None
    if replica.rng is not None and not replica.was_reset:
        replica.rng.seed(None)
    return (
        replica.rng.state() if replica.rng is not None else None,
        replica.spec.game.generator_state(replica.env),
    )


def _restore_generators(replica: Replica, before: tuple[Any, Any]) -> None:
    outer, own = before
    if replica.rng is not None:
        replica.rng.restore(outer)
    if own is not None:
        replica.spec.game.restore_generator(replica.env, own)


def play(replica: Replica, item: tuple[int, Any]) -> Any:
    """Play a turn with the environment's own state of the global generators in place."""
    if replica.rng is None:
        return replica.play(replica.env, item[1])
    with replica.rng.in_place():
        return replica.play(replica.env, item[1])


def call(replica: Replica, item: tuple[int, Change]) -> Any:
    """Do something to it between two turns; what that gave."""
    build_if_needed(replica)
    with replica.rng.in_place() if replica.rng else nullcontext():
        return replica.spec.game.apply(replica.env, item[1])


def _repeat(replica: Replica, change: Change) -> None:
    """Do a change again; one that raised may have changed something all the same, and raises again."""
    try:
        call(replica, (0, change))
    except Exception:
        log.debug("a change of env %d raised in its replay", replica.spec.env_id, exc_info=True)


def replay(replica: Replica, journal: EpisodeJournal, tick: Callable[[], None]) -> Any:
    """Rebuild an episode on a fresh environment, and compare each turn with what was recorded of it.

    What the replica was before is closed. ``tick`` is called before each entry, which has a deadline of its own.

    Returns:
        What it shows, or the :class:`~ragen.parallel.episode.journal.Divergence`.
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
            found = difference(turn - 1, ("snapshot",), (digest,), (game.digest(shown),))
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
    return found or shown


# Snapshots


def save(replica: Replica, shown: Any) -> bytes:
    """The whole state of an environment, its own states of the global generators included, and what it shows.

    Raises:
        Exception: What ``save`` raised, or pickling what it gave.
    """
    with replica.rng.in_place() if replica.rng else nullcontext():
        state = replica.spec.game.save(replica.env)
    return Pickled.of((state, replica.rng.state() if replica.rng is not None else None, shown)).pickled


def load(replica: Replica, saved: bytes) -> tuple[Any, bool]:
    """Have a just built environment stand where another one was saved.

    Returns:
        What it shows, and whether it was asked for that; else it is what the other one has shown.
    """
    state, generators, shown = Pickled(saved).open()
    game = replica.spec.game
    if replica.rng is not None:
        replica.rng.restore(generators)
    with replica.rng.in_place() if replica.rng else nullcontext():
        game.load(replica.env, state)
        now = game.observe(replica.env)
    replica.was_reset = True
    return (shown, False) if now is None else (now, True)


def save_if_due(replica: Replica, shown: Any, seconds: float, begins_unseeded: bool) -> None:
    """Take a snapshot after a turn or a reset, where replaying what was played since the last one would cost more.

    More than the snapshot, and more than a usual turn: to keep one costs the main process something too, and a replay
    of one turn is what a lost environment may cost. It is left in ``replica.saved``.

    An episode that began without a seed, and an environment that cannot be replayed, have one from the beginning. When
    snapshots are taken depends on the clock: so one that raises is none, and nothing else.

    Args:
        replica: The environment, whose class declares snapshots.
        shown: What it shows now.
        seconds: What the turn took.
        begins_unseeded: Whether an episode has just begun that no seed decides.
    """
    usual_s, replica.turn_s = min(replica.turn_s, seconds), seconds
    replica.unsaved_s += seconds
    if not (begins_unseeded or replica.saves_midway):
        return
    is_needed = begins_unseeded or not replica.spec.is_replayable
    if not is_needed and replica.unsaved_s < max(REPLAY_S, DEAR_SAVE * replica.save_s, MORE_THAN_ONE * usual_s):
        return
    start = perf_counter()
    try:
        replica.saved = save(replica, shown)
    except Exception:
        log.warning("%s could not be saved, and is replayed where it is lost", replica.spec.describe(), exc_info=True)
        replica.has_snapshots = False
    replica.save_s, replica.unsaved_s = perf_counter() - start, 0.0


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
