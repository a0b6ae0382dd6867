"""Which environments an engine has: they come, go, and are forked while others play.

A fork stands where another environment stands, or where it stood after one of its turns::

    journal of env 0     reset  turn 1  turn 2  turn 3  turn 4 ...
                                           |
    fork(0, [8, 9], turn=2)                +--> env 8, env 9: a journal of their own, up to here

It is copied in its parent's home where the parent's class declares that it copies in mid-episode and nothing but turns
has happened since the last one. Otherwise the journal is replayed on a fresh environment, in any home. Either way what
it shows is compared with the journal, and either it stands there when the call returns, or it was never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ragen.errors import ForkError, InputError, StateError
from ragen.parallel.env_record import EnvFailed, EnvRecord
from ragen.parallel.episode.journal import Change, EpisodeJournal, JournalTurn
from ragen.parallel.episode.replicas import NOT_THERE, Lineage
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.values import copied
from ragen.parallel.homes import Homes
from ragen.parallel.in_use import InUse
from ragen.parallel.lanes.lane import Lane
from ragen.parallel.lanes.orders import Fork
from ragen.parallel.round import Parts, Round


class Roster:
    """The environments of one engine, as they come and go."""

    def __init__(self, parts: Parts, homes: Homes, in_use: InUse) -> None:
        self._parts, self._homes, self._in_use = parts, homes, in_use
        self._records = parts.records

    def add(self, spec: EnvSpec, lane: int | None) -> None:
        """Take in one more environment; see :meth:`~ragen.parallel.engine.EnvEngine.add`."""
        self._in_use.check_open()
        with self._parts.lock:
            if spec.env_id in self._records:
                raise StateError(f"{spec.describe()} was added twice; remove it first, or give it an id of its own.")
            home = self._homes.lane_of_index(lane) if lane is not None else None
            self._records[spec.env_id] = EnvRecord(spec, home)
            self._parts.tags.add(spec.tag)

    def remove(self, env_ids: Iterable[int]) -> None:
        """Close environments and forget them; ids that are not known are ignored."""
        with self._parts.lock:
            leaving = [self._records[env_id] for env_id in env_ids if env_id in self._records]
            for record in leaving:
                self._parts.failures.came_through(record)
            self._forget(leaving)
            if not self._records:
                self._parts.notices.forget()

    def _forget(self, leaving: Sequence[EnvRecord]) -> None:
        self._homes.evict(leaving)
        for record in leaving:
            del self._records[record.env_id]

    def fork(self, env_id: int, new_ids: Sequence[int], turn: int | None, may_start_lanes: bool) -> dict[int, Any]:
        """See :meth:`~ragen.parallel.engine.EnvEngine.fork`; lanes beside those in use are started if they may be."""
        with self._in_use.claimed([env_id]), ExitStack() as claims:
            with self._parts.lock:
                parent = self._records[env_id]
                self._check_ids(new_ids)
                check_turn(parent, turn)
                lineage, journal = lineage_of(parent, turn)
                is_copied = lineage.source is not None
                homes = [parent.home] * len(new_ids)
                if not is_copied:
                    homes = self._homes.for_forks(parent.home, len(new_ids), may_start_lanes)
                for new_id, home in zip(new_ids, homes, strict=True):
                    self._records[new_id] = _child(parent, new_id, home)
                claims.enter_context(self._in_use.claimed(new_ids))
            try:
                return self._stand_there(parent, dict.fromkeys(new_ids, lineage), journal)
            except BaseException:  # an interrupt too: it has not happened
                with self._parts.lock:
                    self._forget([self._records[new_id] for new_id in new_ids])
                raise

    def _check_ids(self, new_ids: Sequence[int]) -> None:
        for place, new_id in enumerate(new_ids):
            if not isinstance(new_id, int) or isinstance(new_id, bool):
                raise InputError(f"a fork was given the id {new_id!r}; expected an integer.")
            if new_id in self._records or new_id in new_ids[:place]:
                raise StateError(f"there is an env {new_id} already; give each fork an id of its own.")

    def _stand_there(self, parent: EnvRecord, lineages: dict[int, Lineage], journal: EpisodeJournal) -> dict[int, Any]:
        """Have the new environments copied or rebuilt, and begin their journals; what they show."""
        items = {env_id: (env_id, lineage) for env_id, lineage in lineages.items()}
        values = Round(self._parts, Fork, items, self._parts.settings.reset_timeout).run()
        where = f"{parent.spec.describe()} cannot be forked as it was after turn {journal.turns}"
        with self._parts.lock:
            for env_id, value in values.items():
                if isinstance(value, EnvFailed):
                    raise ForkError(f"{where}: {value.text}.") from value.error
                if value.note and lineages[env_id].journal is None:
                    raise ForkError(f"{where}: {value.note}, and it declares that it cannot be replayed.")
                if value.note and value.note != NOT_THERE:  # as when its worker was killed
                    story = f"{parent.spec.describe()} was replayed to be forked, and not copied: {value.note}"
                    self._parts.notices.say(story, (parent.spec.tag, "fork"))
            for env_id, value in values.items():
                self._records[env_id].commit_fork(journal.until(None), value.observation)
        return {env_id: self._records[env_id].observation for env_id in lineages}


def check_turn(parent: EnvRecord, turn: int | None) -> None:
    """See to it that an environment has stood at the end of this turn; 0 is the reset, None now.

    Raises:
        StateError: It was not reset yet.
        ForkError: It has failed, and there is no now.
        InputError: There is no such turn.
    """
    spec, played, failed = parent.spec, parent.journal.turns, parent.failed
    if not parent.journal.has_begun:
        why = f"its reset has failed: {failed.text}" if failed is not None else "it was not reset yet"
        raise StateError(f"{spec.describe()} cannot be forked: {why}.")
    if turn is None:
        if failed is not None:
            text = f"it has failed ({failed.text}); give the turn to go back to, from 0 to {played}"
            raise ForkError(f"{spec.describe()} cannot be forked as it is now: {text}.")
        return
    if not isinstance(turn, int) or isinstance(turn, bool) or not 0 <= turn <= played:
        text = f"expected 0 (its reset) to {played}, the turns of its present episode, or None for now"
        raise InputError(f"{spec.describe()} cannot be forked after turn = {turn!r}: {text}.")


def lineage_of(parent: EnvRecord, turn: int | None) -> tuple[Lineage, EpisodeJournal]:
    """How an environment is forked, and the journal that its fork begins with.

    Raises:
        ForkError: It can neither be copied nor replayed.
    """
    spec, game = parent.spec, parent.spec.game
    journal = parent.journal.until(turn)
    journal.entries = [
        entry if isinstance(entry, Change) else JournalTurn(game.without_place(entry.action), entry.recorded)
        for entry in journal.entries
    ]
    obstacle = _obstacle(parent, len(journal.entries))
    if obstacle and not spec.is_replayable:
        raise ForkError(
            f"{spec.describe()} cannot be forked as it was after turn {journal.turns}: it declares that it cannot be "
            f"replayed, and cannot be copied, since {obstacle}."
        )
    played, place = journal.played(), game.recorded.index("digest")
    digest = played[-1].recorded[place] if played else journal.digest
    return Lineage(None if obstacle else spec.env_id, digest, journal if spec.is_replayable else None), journal


def _obstacle(parent: EnvRecord, entries: int) -> str:
    """Why an environment is not to be copied so that the copy has so many entries; nothing if it is."""
    journal = parent.journal
    if not parent.spec.copies_midway:
        return "its class does not declare copies_midway = True"
    if entries < len(journal.entries):
        return "it has gone on since"
    if journal.lasting():
        return f"attributes were set from outside ({', '.join(journal.lasting())})"
    if journal.entries and isinstance(journal.entries[-1], Change):
        return "it was changed after its last turn, and what it has shown is of before"
    if not parent.is_ready or parent.is_suspect or parent.failed is not None:
        return "its state was lost"
    return ""


def _child(parent: EnvRecord, env_id: int, home: Lane | None) -> EnvRecord:
    """A record of an environment of its own kind, that lives nowhere yet."""
    spec = replace(parent.spec, env_id=env_id, config=copied(parent.spec.config))
    origin = parent.env_id if parent.origin is None else parent.origin
    return EnvRecord(spec, home, bound_to_main=parent.bound_to_main, origin=origin)
