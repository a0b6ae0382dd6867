"""A sudoku as text, in the three formats of ``render_format``."""

from __future__ import annotations

import math

from ragen.env.sudoku.grid import Grid

_TITLE = f"{'=' * 50}\nSUDOKU PUZZLE\n{'=' * 50}\n"
_LEGEND = "Legend: [N]=initial cell, N=user-placed, *N*=conflict, .=empty"
_HINTS = "💡 VALID NUMBERS FOR EMPTY CELLS:"
HINT_LIMIT = 10
"""Hints are shown if at most this many cells are blank."""


def board(cells: list[int], given: list[int], framed: bool) -> str:
    """The board: lines of cells, with rules between boxes.

    Args:
        cells: The numbers, row by row, 0 for blank cells.
        given: Those of the puzzle.
        framed: Whether given numbers are in brackets; if not, all numbers look alike.
    """
    size = math.isqrt(len(cells))
    box = math.isqrt(size)
    shown = [str(number or ".") for number in cells]
    if framed:
        shown = [f"[{text}]" if start else f" {text} " for text, start in zip(shown, given, strict=True)]
    inner, outer = ("", "| ") if framed else (" ", " | ")
    parts = [inner.join(shown[at : at + box]) for at in range(0, len(shown), box)]
    lines = [outer.join(parts[at : at + box]).rstrip() for at in range(0, len(parts), box)]
    rule = f"\n{'-' * (size * (3 if framed else 2) + box - 1)}\n"
    return rule.join("\n".join(lines[at : at + box]) for at in range(0, size, box))


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
