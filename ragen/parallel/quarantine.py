"""Lanes of their own for environments under suspicion, so that what they do to a worker harms no other environment."""

from __future__ import annotations

from collections.abc import Container, Iterable

from ragen.parallel.env_record import NOT_LOADED, EnvRecord
from ragen.parallel.lanes.lane import Lane
from ragen.parallel.lanes.pool import WorkerPool

QUARANTINE = "quarantine"
"""What names of its lanes begin with."""


class Quarantine:
    """At most so many lanes, one for each suspect; those for whom there is no room wait for their turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guests: dict[int, EnvRecord] = {}

    def __contains__(self, lane: Lane | None) -> bool:
        return any(record.lane is lane for record in self._guests.values())

    def admit(self, record: EnvRecord, pool: WorkerPool) -> bool:
        """Give a suspect a lane of its own; whether it has one now."""
        if record.env_id in self._guests:
            return True
        if len(self._guests) >= self._most:
            return False
        record.lane = pool.open_extra(f"{QUARANTINE} of env {record.env_id}")
        record.generation, record.in_sync = NOT_LOADED, False
        self._guests[record.env_id] = record
        return True

    def make_room(self, busy: Container[int], pool: WorkerPool) -> None:
        """Let those out who have nothing to do now, since others wait."""
        self.release([record for env_id, record in self._guests.items() if env_id not in busy], pool)

    def release(self, records: Iterable[EnvRecord], pool: WorkerPool) -> None:
        """Take these back to their homes, where they are rebuilt when next needed; their workers are ended."""
        for record in list(records):
            if self._guests.pop(record.env_id, None) is not None:
                assert record.lane is not None
                pool.close_extra(record.lane)
                record.lane, record.generation, record.in_sync = record.home, NOT_LOADED, False

    def close(self, pool: WorkerPool) -> None:
        """Let everyone out."""
        self.release(self._guests.values(), pool)
