"""Sudoku grids, and the generation of puzzles. A grid is a flat list, row by row, with 0 for blank cells."""

from __future__ import annotations

import math
import random


class Grid:
    """The numbers on the board.

    Attributes:
        size: Number of rows, columns and numbers.
        cells: The numbers, row by row, 0 for blank cells.
    """

    def __init__(self, size: int, cells: list[int]) -> None:
        """Create a grid from cells without conflicts; the list is not copied."""
        self.size = size
        self.cells = cells

    @property
    def blanks(self) -> int:
        """Number of blank cells."""
        return self.cells.count(0)

    def _units(self, index: int) -> dict[str, list[int]]:
        """The numbers in a cell's row, column and box, by their names, which count from 1."""
        size, cells, (row, column) = self.size, self.cells, divmod(index, self.size)
        side = math.isqrt(size)
        top, left = row // side, column // side
        starts = range(top * side * size + left * side, (top + 1) * side * size, size)
        return {
            f"row {row + 1}": cells[row * size : (row + 1) * size],
            f"column {column + 1}": cells[column::size],
            f"box ({top + 1},{left + 1})": [number for start in starts for number in cells[start : start + side]],
        }

    def valid_numbers(self, index: int) -> tuple[int, ...]:
        """The numbers that may be placed in a blank cell, ascending; empty for a filled cell."""
        held = set().union(*self._units(index).values())
        return () if self.cells[index] else tuple(number for number in range(1, self.size + 1) if number not in held)

    def conflicts(self, index: int, number: int) -> list[str]:
        """The units that already have the number: ``"row R"``, ``"column C"``, ``"box (R,C)"``, counted from 1."""
        return [name for name, unit in self._units(index).items() if number in unit]


def filled_cells(size: int, rng: random.Random) -> list[int]:
    """A full grid, filled depth-first in reading order with the numbers shuffled again for every cell.

    Args:
        size: Number of rows, columns and numbers.
        rng: The generator.

    Returns:
        The numbers, row by row.
    """
    cells, choices = [0] * size**2, list[list[int]]()
    while 0 in cells:
        order = list(range(1, size + 1))
        rng.shuffle(order)
        valid = Grid(size, cells).valid_numbers(len(choices))
        choices.append([number for number in reversed(order) if number in valid])
        while not choices[-1]:
            choices.pop()
            cells[len(choices) - 1] = 0
        cells[len(choices) - 1] = choices[-1].pop()
    return cells


def make_puzzle(size: int, blank_share: float, seed: int) -> tuple[list[int], list[int]]:
    """A puzzle and the grid from which it was made; other solutions may exist.

    Args:
        size: 4 or 9.
        blank_share: The fraction of cells to blank, 0 to 1, rounded down to whole cells.
        seed: Seed of Python's ``random.Random``.

    Returns:
        The given numbers with 0 for blank cells, and the full grid, both row by row.
    """
    rng = random.Random(seed)
    solution = filled_cells(size, rng)
    order = list(range(size * size))
    rng.shuffle(order)
    given = solution.copy()
    for index in order[: int(size * size * blank_share)]:
        given[index] = 0
    return given, solution
