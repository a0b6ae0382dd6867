"""Solves a sudoku from its observation, in any of the formats."""

from __future__ import annotations

import re

from ragen.env.sudoku.grid import Grid

_ROW = re.compile(r"[\d.\[\]*| ]+")
_CELL = re.compile(r"(\[?)(\d|\.)")
_NODE_LIMIT = 20_000

Move = tuple[int, int, int]
"""Row, column and number, counted from 1."""


def read_board(state_text: str) -> tuple[list[int], list[int]] | None:
    """The numbers in an observation, row by row, 0 for blank cells.

    Returns:
        All numbers, and only those in brackets (the given ones; the simple format marks none); None if the text shows
        no board.
    """
    rows = [_CELL.findall(line) for line in state_text.splitlines() if _ROW.fullmatch(line)]
    size = len(rows[0]) if rows else 0
    if size not in (4, 9) or [len(row) for row in rows] != [size] * size:
        return None
    cells = [cell for row in rows for cell in row]
    shown = [0 if text == "." else int(text) for _, text in cells]
    return shown, [number if bracket else 0 for (bracket, _), number in zip(cells, shown, strict=True)]


def solve(state_text: str) -> list[Move] | None:
    """The placements that complete the board.

    The numbers on the board are kept if possible; otherwise the player's numbers are replaced, if the text
    distinguishes them from the given ones.

    Args:
        state_text: An observation of the puzzle.

    Returns:
        The cells to fill or overwrite, row by row; None if the text shows no board, or one without a solution. A number
        still to be overwritten may conflict with a move, which must then wait for the later one.
    """
    boards = read_board(state_text)
    if boards is None:
        return None
    shown, given = boards
    solution = fill(shown) or (fill(given) if any(given) else None)
    if solution is None:
        return None
    size = _size(shown)
    return [
        (index // size + 1, index % size + 1, number) for index, number in enumerate(solution) if number != shown[index]
    ]


def _size(cells: list[int]) -> int:
    return 4 if len(cells) == 16 else 9


def fill(cells: list[int]) -> list[int] | None:
    """A full grid with these numbers; None if there is none, or none was found within the node limit."""
    grid = Grid(_size(cells), [0] * len(cells))
    for index, number in enumerate(cells):
        if number:
            if number > grid.size or grid.conflicts(index, number):
                return None
            grid.place(index, number)
    return _fill_most_constrained(grid, [_NODE_LIMIT])


def _fill_most_constrained(grid: Grid, budget: list[int]) -> list[int] | None:
    blanks = [index for index, number in enumerate(grid.cells) if not number]
    budget[0] -= 1
    if not blanks:
        return grid.cells
    if budget[0] < 0:
        return None
    index = min(blanks, key=lambda blank: len(grid.valid_numbers(blank)))
    for number in grid.valid_numbers(index):
        branch = grid.copy()
        branch.place(index, number)
        filled = _fill_most_constrained(branch, budget)
        if filled:
            return filled
    return None
