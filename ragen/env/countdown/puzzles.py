"""The puzzles of a source, each with numbers and a target that plus and minus can reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ragen.env.checks import integer
from ragen.env.rows import RowSource, is_of, load_rows

_SIGNED_NUMBERS = 4  # RAGEN's filter looks at four numbers; a fifth stays in the puzzle, and counts in the answer


class Puzzle(NamedTuple):
    """Numbers to use once each, and the target to reach."""

    numbers: tuple[int, ...]
    target: int


def reachable_by_signs(numbers: Iterable[int], target: int) -> bool:
    """Whether some choice of plus and minus before each of the first four numbers sums to the target."""
    sums = {0}
    for number in tuple(numbers)[:_SIGNED_NUMBERS]:
        sums = {total + signed for total in sums for signed in (number, -number)}
    return target in sums


@lru_cache(maxsize=8)
def load_puzzles(source: RowSource, max_instances: int, part: str | None = None) -> tuple[Puzzle, ...]:
    """The puzzles of a source, read once per process.

    Args:
        source: Rows with columns ``nums`` and ``target``.
        max_instances: Number of rows to read, from the first.
        part: The mode, where training and validation share no puzzle; None for all.

    Returns:
        Their puzzles for which :func:`reachable_by_signs` holds, in order.

    Raises:
        ConfigError: The source cannot be read, a row is malformed, or no puzzle is left.
    """
    rows = load_rows(source)
    puzzles = []
    for index in range(min(max_instances, len(rows))):
        puzzle = _puzzle(source, index, *rows[index])
        if part and not is_of(part, f"{puzzle.target} {sorted(puzzle.numbers)}"):
            continue
        if reachable_by_signs(*puzzle):
            puzzles.append(puzzle)
    if not puzzles:
        taken = min(max_instances, len(rows))
        raise source.error(f"none of the first {taken} rows has a target that plus and minus can reach.")
    return tuple(puzzles)


def _puzzle(source: RowSource, index: int, numbers: Any, target: Any) -> Puzzle:
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or not all(map(integer().fits, numbers)):
        raise source.error(f"row {index + 1} has nums={numbers!r}, expected a list of integers.")
    if not numbers or not integer().fits(target):
        raise source.error(f"row {index + 1} has nums={numbers!r}, target={target!r}, expected numbers and an integer.")
    return Puzzle(tuple(numbers), target)
