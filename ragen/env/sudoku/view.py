"""A sudoku as text, in the three formats of ``render_format``."""

from __future__ import annotations

import math

from ragen.env.sudoku.grid import Grid

_TITLE = f"{'=' * 50}\nSUDOKU PUZZLE\n{'=' * 50}\n"
_LEGEND = "Legend: [N]=initial cell, N=user-placed, *N*=conflict, .=empty"
_HINTS = "💡 VALID NUMBERS FOR EMPTY CELLS:"
HINT_LIMIT = 10
"""Hints are shown if at most this many cells are blank."""


class BoardView:
    """The board as lines of text; a placement redraws one line.

    Args:
        given: The given numbers, row by row, 0 for blank cells.
        size: Number of rows and columns.
        framed: Whether given numbers are in brackets; if not, all numbers look alike.
    """

    def __init__(self, given: list[int], size: int, framed: bool) -> None:
        self._size = size
        self._box = math.isqrt(size)
        self._framed = framed
        shown = [f"[{number}]" for number in range(size + 1)] if framed else [str(number) for number in range(size + 1)]
        shown[0] = " . " if framed else "."
        self._cells = [shown[number] for number in given]
        self._lines = [self._line(row) for row in range(size)]

    def place(self, index: int, number: int) -> None:
        """Show a number that the player placed."""
        self._cells[index] = f" {number} " if self._framed else str(number)
        row = index // self._size
        self._lines[row] = self._line(row)

    def _line(self, row: int) -> str:
        start = row * self._size
        stop = start + self._size
        boxes = [self._cells[i : i + self._box] for i in range(start, stop, self._box)]
        if self._framed:
            return "| ".join(["".join(box) for box in boxes]).rstrip()
        return " | ".join([" ".join(box) for box in boxes])

    def text(self) -> str:
        """The board: lines of cells, with rules between boxes."""
        rule = f"\n{'-' * (self._size * (3 if self._framed else 2) + self._box - 1)}\n"
        bands = ["\n".join(self._lines[i : i + self._box]) for i in range(0, self._size, self._box)]
        return rule.join(bands)


def titled(board: str) -> str:
    """The board under the title, with the legend."""
    return f"{_TITLE}{board}\n\n{_LEGEND}"


def hints(grid: Grid) -> str:
    """The valid numbers of each blank cell that has any, one line per cell."""
    lines = [_HINTS]
    for index in range(len(grid.cells)):
        fitting = grid.valid_numbers(index)
        if fitting:
            row, column = divmod(index, grid.size)
            lines.append(f"  - ({row + 1},{column + 1}): {list(fitting)}")
    return "\n".join(lines)


def progress(grid: Grid, given: int, steps: int, max_steps: int) -> str:
    """The number of filled cells and of steps."""
    total = len(grid.cells)
    filled = total - grid.blanks
    placed = filled - given
    counts = f"{filled}/{total} cells filled ({given} initial, {placed} placed)"
    return f"Progress: {counts}\nSteps: {steps}/{max_steps}"
