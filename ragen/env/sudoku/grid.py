"""Sudoku grids, which track the numbers in each row, column and box, and the generation of puzzles.

A grid is a flat list, row by row, with 0 for blank cells. The numbers in a row, column or box are an integer with bit
``v`` set for number ``v``, so checking a number takes three look-ups.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache


@lru_cache(maxsize=4)
def units(size: int) -> tuple[tuple[int, int, int], ...]:
    """Row, column and box number of each cell of a grid with this many rows."""
    box = math.isqrt(size)
    return tuple((r, c, r // box * box + c // box) for r in range(size) for c in range(size))


@lru_cache(maxsize=2048)
def numbers_missing(size: int, held: int) -> tuple[int, ...]:
    """The numbers 1 to ``size`` whose bit is not set, ascending."""
    return tuple(number for number in range(1, size + 1) if not held >> number & 1)


class Grid:
    """The numbers on the board, and those in each row, column and box.

    Attributes:
        size: Number of rows, columns and numbers.
        cells: The numbers, row by row, 0 for blank cells.
        blanks: Number of blank cells.
    """

    def __init__(self, size: int, cells: list[int]) -> None:
        """Create a grid from cells without conflicts."""
        self.size = size
        self.cells = [0] * size**2
        self.blanks = len(cells)
        self._units = units(size)
        self._rows, self._columns, self._boxes = ([0] * size for _ in range(3))
        for index, number in enumerate(cells):
            self.place(index, number)

    def _flip(self, index: int, number: int) -> None:
        r, c, b = self._units[index]
        self._rows[r] ^= 1 << number
        self._columns[c] ^= 1 << number
        self._boxes[b] ^= 1 << number

    def _held(self, index: int) -> int:
        r, c, b = self._units[index]
        return self._rows[r] | self._columns[c] | self._boxes[b]

    def valid_numbers(self, index: int) -> tuple[int, ...]:
        """The numbers that may be placed in a blank cell, ascending; empty for a filled cell."""
        return () if self.cells[index] else numbers_missing(self.size, self._held(index))

    def conflicts(self, index: int, number: int) -> list[str]:
        """The units that already have the number: ``"row R"``, ``"column C"``, ``"box (R,C)"``, counted from 1."""
        r, c, b = self._units[index]
        found = []
        if self._rows[r] >> number & 1:
            found.append(f"row {r + 1}")
        if self._columns[c] >> number & 1:
            found.append(f"column {c + 1}")
        if self._boxes[b] >> number & 1:
            box = math.isqrt(self.size)
            found.append(f"box ({b // box + 1},{b % box + 1})")
        return found

    def place(self, index: int, number: int) -> None:
        """Write a number without conflicts into a cell, or 0 to clear it."""
        for each in (self.cells[index], number):
            if each:
                self._flip(index, each)
        self.blanks += (not number) - (not self.cells[index])
        self.cells[index] = number


def filled_cells(size: int, rng: random.Random) -> list[int]:
    """A full grid, filled depth-first in reading order with the numbers shuffled again for every cell.

    Args:
        size: Number of rows, columns and numbers.
        rng: The generator.

    Returns:
        The numbers, row by row.
    """
    grid, choices = Grid(size, [0] * size**2), list[list[int]]()
    while grid.blanks:
        order = list(range(1, size + 1))
        rng.shuffle(order)
        valid = grid.valid_numbers(len(choices))
        choices.append([number for number in reversed(order) if number in valid])
        while not choices[-1]:
            choices.pop()
            grid.place(len(choices) - 1, 0)
        grid.place(len(choices) - 1, choices[-1].pop())
    return grid.cells


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
