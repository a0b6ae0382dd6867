"""Turns of many of RAGEN's environments in one piece; see :mod:`ragen.parallel.episode.rows`."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from ragen.parallel.episode.game import UNINTERRUPTED
from ragen.parallel.episode.rows import Row, RowBroken, RowResult
from ragen.parallel.episode.turn import RAGEN, Turn, TurnResult, named, play_turn

UNINTERRUPTED.add(__file__)
_record = RAGEN.record


class TurnRow(Row):
    """A turn of each of some environments, as :class:`~ragen.parallel.episode.turn.RagenGame` plays it.

    Attributes:
        turns: One for each.
        sums: Entries of infos that are summed; see :func:`~ragen.parallel.episode.turn.play_turn`.
    """

    __slots__ = ("sums", "turns")

    def __init__(self, env_ids: list[int], turns: list[Turn], sums: tuple[str, ...] = ()) -> None:
        """Ask for these."""
        self.env_ids, self.turns, self.sums = env_ids, turns, sums

    def __reduce__(self) -> Any:
        return _turn_row, (self.env_ids, [tuple(turn) for turn in self.turns], self.sums)

    def turn(self, index: int) -> Turn:
        """What is asked of one of them."""
        return self.turns[index]

    def part(self, indices: Sequence[int]) -> TurnRow:
        """Some of them."""
        return TurnRow([self.env_ids[i] for i in indices], [self.turns[i] for i in indices], self.sums)

    def play(self, envs: Sequence[Any], watch: Any) -> TurnRowResult:
        """Play all turns; see :meth:`Row.play`."""
        turns: list[TurnResult] = []
        mark, sums = watch.mark, self.sums
        try:
            watch.since = perf_counter()
            for env, turn in zip(envs, self.turns, strict=True):
                if mark is not None:
                    mark(len(turns))
                turns.append(play_turn(env, turn, sums))
                watch.since = perf_counter()
        except BaseException as error:
            raise RowBroken(TurnRowResult(turns)) from error
        return TurnRowResult(turns)


class TurnRowResult(RowResult):
    """What came of a row."""

    __slots__ = ("_lines", "_turns")

    def __init__(self, turns: list[TurnResult]) -> None:
        """These results."""
        self._turns = turns
        self._lines: list[tuple[Any, ...]] | None = None  # of a journal, once the turns are forgotten

    def __len__(self) -> int:
        return len(self._turns if self._lines is None else self._lines)

    def __reduce__(self) -> Any:
        return _turn_row_result, ([tuple(turn) for turn in self._turns],)

    def one(self, index: int) -> TurnResult:
        """What came of one of them."""
        return self._turns[index]

    def recorded(self, index: int) -> tuple[Any, ...]:
        """Reward, whether the game is over, and digest of one of them."""
        return _record(self._turns[index]) if self._lines is None else self._lines[index]

    def begun(self) -> Sequence[int]:
        """None: episodes begin with a reset."""
        return ()

    def forget(self) -> None:
        """Keep what a journal does."""
        if self._lines is None:
            self._lines, self._turns = list(map(_record, self._turns)), []


def _turn_row(env_ids: list[int], turns: list[tuple[Any, ...]], sums: tuple[str, ...]) -> TurnRow:
    return TurnRow(env_ids, [named(Turn, turn) for turn in turns], sums)


def _turn_row_result(turns: list[tuple[Any, ...]]) -> TurnRowResult:
    return TurnRowResult([named(TurnResult, turn) for turn in turns])
