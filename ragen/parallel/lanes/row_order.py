"""Turns of one home in one piece, as an order; see :mod:`ragen.parallel.episode.rows`."""

from __future__ import annotations

from typing import Any

from ragen.parallel.episode.host import EnvHost
from ragen.parallel.episode.outcome import Outcome
from ragen.parallel.episode.rows import Row
from ragen.parallel.lanes.orders import Play


class PlayRow(Play):
    """Play a row.

    Attributes:
        row: The turns.
    """

    def __init__(self, row: Row) -> None:
        """Ask for these turns."""
        self.row = row

    def __len__(self) -> int:
        return len(self.row)

    def envs_at(self, index: int) -> list[int]:
        """The environment whose turn it is."""
        return [self.row.env_ids[index]]

    def part(self, first: int, count: int) -> PlayRow:
        """Some of the turns."""
        return PlayRow(self.row.part(range(first, first + count)))

    def run(self, host: EnvHost) -> list[Outcome]:
        """See :meth:`EnvHost.play_row`: one outcome that holds a result of all, or one for each environment."""
        return host.play_row(self.row)

    def fields(self, seal: bool) -> tuple[Any, ...]:
        """The row, as it is."""
        return (self.row,)

    def singly(self) -> Play:
        """The same as turns of their own, of which some cannot travel."""
        return Play(self.row.items())

    @classmethod
    def of_fields(cls, row: Row) -> PlayRow:  # type: ignore[override]
        """What :meth:`fields` took apart."""
        return cls(row)
