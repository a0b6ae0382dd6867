"""Forks of environments: copies of an environment in its current state, or in its state after an earlier turn.

    journal of env 0     reset  turn 1  turn 2  turn 3  turn 4 ...
                                           |
    fork(0, [8, 9], turn=2)                +--> env 8, env 9: a journal of their own, up to here

A fork starts with a copy of another environment's journal. It is rebuilt from it, like any environment whose worker was
lost, in a worker or in the main process. Its observations are compared with the journal; when the call returns, the
fork is in that state, or it was never added.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from envlanes.environments import EnvRecord
from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.values import copied
from envlanes.errors import ForkError, InputError, StateError
from envlanes.lanes.lane import Lane


def check_ids(new_ids: Sequence[int], known: Collection[int]) -> None:
    """Check the ids of new forks.

    Raises:
        InputError: An id is not an integer.
        StateError: An id belongs to an environment or to another fork.
    """
    for place, new_id in enumerate(new_ids):
        if not isinstance(new_id, int) or isinstance(new_id, bool):
            raise InputError(f"a fork got the id {new_id!r}; expected an integer.")
        if new_id in known or new_id in new_ids[:place]:
            raise StateError(f"env {new_id} already exists; give each fork another id.")


def check_turn(parent: EnvRecord, turn: int | None) -> None:
    """Check that an environment has played this turn; 0 is the reset, None the current state.

    Raises:
        StateError: It was not reset yet.
        ForkError: It has failed, and has no current state.
        InputError: There is no such turn.
    """
    spec, played, failed = parent.spec, parent.journal.turns, parent.failed
    if not parent.journal.has_begun:
        why = f"its reset has failed: {failed.text}" if failed is not None else "it has not been reset"
        raise StateError(f"{spec.describe()} cannot be forked: {why}.")
    if turn is None:
        if failed is not None:
            text = f"it has failed ({failed.text}); give the turn to go back to, from 0 to {played}"
            raise ForkError(f"{spec.describe()} cannot be forked as it is now: {text}.")
        return
    if not isinstance(turn, int) or isinstance(turn, bool) or not 0 <= turn <= played:
        text = f"expected 0 (its reset) to {played}, the turns of its current episode, or None for its current state"
        raise InputError(f"{spec.describe()} cannot be forked after turn = {turn!r}: {text}.")


def journal_until(parent: EnvRecord, turn: int | None) -> EpisodeJournal:
    """The journal with which a fork begins.

    Raises:
        ForkError: The parent declares that it cannot be replayed, and no snapshot was taken there.
    """
    spec, game = parent.spec, parent.spec.game
    journal = parent.journal.until(turn)
    journal.entries = [
        entry if isinstance(entry, Change) else JournalTurn(game.without_place(entry.action), entry.recorded)
        for entry in journal.entries
    ]
    if not spec.is_replayable and not journal.ends_with_snapshot:
        raise ForkError(
            f"{spec.describe()} cannot be forked as it was after turn {journal.turns}: its class declares that "
            f"it cannot be replayed, and has no snapshot of that moment (declare `save` and `load`)."
        )
    return journal


def child(parent: EnvRecord, env_id: int, home: Lane | None, journal: EpisodeJournal) -> EnvRecord:
    """The record of a fork of the parent, not yet built, with a journal of its own."""
    spec = replace(parent.spec, env_id=env_id, config=copied(parent.spec.config))
    origin = parent.env_id if parent.origin is None else parent.origin
    made = EnvRecord(spec, home, bound_to_main=parent.bound_to_main, origin=origin)
    made.journal = journal.until(None)
    return made
