"""One environment where it lives, and what is done to it there: built, reset, played, replayed, forked, closed.

A replica is the only live copy of its environment. Everything that a host does with one is a function here, called the
same in the main process and in workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from ragen.parallel.episode.global_rng import EnvRng
from ragen.parallel.episode.journal import Change, Divergence, EpisodeJournal, difference
from ragen.parallel.episode.outcome import Overdue, describe
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.interrupts import let_signals_pass

log = logging.getLogger(__name__)

NOT_THERE = "the environment that was to be copied is not there any more"


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
    """

    spec: EnvSpec
    play: Callable[[Any, Any], Any]
    env: Any = None
    rng: EnvRng | None = None
    was_reset: bool = False
    is_slow: bool = True


class Stand(NamedTuple):
    """Where an environment stands that was rebuilt or forked.

    Attributes:
        observation: What it shows; None where no episode has begun.
        note: Why what was to be copied was not; it was replayed then, or was not forked where that cannot be done.
    """

    observation: Any
    note: str = ""


class Lineage(NamedTuple):
    """What a forked environment is to become.

    Attributes:
        source: The environment that it may be copied from, which lives at the same host; None to replay.
        digest: What stands for the observation that a copy has to show.
        journal: What is replayed where nothing is copied; None where that cannot be done.
    """

    source: int | None
    digest: Any
    journal: EpisodeJournal | None


def build_if_needed(replica: Replica) -> None:
    """Build the environment where it is not there yet."""
    if replica.env is not None:
        return
    spec = replica.spec
    replica.rng = EnvRng(0) if spec.uses_global_rng else None
    replica.was_reset = False
    with replica.rng.in_place() if replica.rng else nullcontext():
        replica.env = spec.game.build(spec)


def reset(replica: Replica, seed: int | None, options: dict[str, Any] | None) -> Any:
    """Begin an episode; the first observation."""
    if replica.rng is not None and seed is not None:
        replica.rng.seed(seed)
    with replica.rng.in_place() if replica.rng else nullcontext():
        observation = replica.spec.game.reset(replica.env, seed, options)
    replica.was_reset = True
    return observation


def generators(replica: Replica) -> Any:
    """The state of the generators before a reset without a seed; the global ones begin at random the first time."""
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


def replay(replica: Replica, journal: EpisodeJournal, tick: Callable[[], None]) -> Stand | Divergence:
    """Rebuild an episode on a fresh environment, and compare each turn with what was recorded of it.

    What the replica was before is closed. ``tick`` is called before each entry, which has a deadline of its own.
    """
    if replica.env is not None:
        close(replica)
    build_if_needed(replica)
    for name, value in journal.settings.items():
        call(replica, (0, Change(name, (value,), is_set=True)))
    if not journal.has_begun:
        return Stand(None)
    return _replay_episode(replica, journal, tick)


def _replay_episode(replica: Replica, journal: EpisodeJournal, tick: Callable[[], None]) -> Stand | Divergence:
    game, turn = replica.spec.game, 0
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
    return found or Stand(shown)


def fork(replica: Replica, lineage: Lineage, source: Replica | None, tick: Callable[[], None]) -> Stand | Divergence:
    """Make an environment stand where its lineage says: a copy of ``source`` that shows the same, or else a replay.

    ``tick`` is called before each entry of a replay.
    """
    note = ""
    if lineage.source is not None:
        copied = _copy(replica, source, lineage.digest)
        if not isinstance(copied, str):
            return copied
        note = copied
    if lineage.journal is None:
        return Stand(None, note)
    found = replay(replica, lineage.journal, tick)
    return found if isinstance(found, Divergence) else found._replace(note=note)


def _copy(replica: Replica, source: Replica | None, digest: Any) -> Stand | str:
    """Copy an environment in mid-episode; why that cannot be done, or is not to be trusted."""
    if source is None or source.env is None:
        return NOT_THERE
    if replica.env is not None:
        close(replica)
    build_if_needed(replica)
    game = replica.spec.game
    try:
        with replica.rng.in_place() if replica.rng else nullcontext():
            shown = game.copy_midway(replica.env, source.env)
    except Exception as error:
        return f"copy_from raised {describe(error)}"
    if shown is None:
        return "copy_from did not copy in mid-episode"
    if found := difference(0, ("digest",), (digest,), (game.digest(shown),)):
        return f"its copy did not show the same: {found.contrast()}"
    draw_alike(replica, source)
    return Stand(shown)


def draw_alike(replica: Replica, source: Replica) -> None:
    """Have a copy of another environment draw the numbers that the other one will draw."""
    if replica.rng is not None and source.rng is not None:
        replica.rng.copy_from(source.rng)
    replica.was_reset = True


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
