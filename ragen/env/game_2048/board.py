"""The rules of 2048 on a board of tuples: sliding lines and making moves.

A board is a tuple of rows, a row a tuple of tile values, 0 where empty. Lines repeat often, so the results of sliding
are cached; a move is then a few lookups.
"""

from __future__ import annotations

from functools import lru_cache

Line = tuple[int, ...]
Board = tuple[Line, ...]

UP, RIGHT, DOWN, LEFT = range(4)


@lru_cache(maxsize=65536)
def slide(line: Line) -> tuple[Line, int]:
    """Slide a line towards its start; equal neighbors merge, each tile once.

    Returns:
        The new line, and the sum of the merged tiles.
    """
    merged: list[int] = []
    gained = waiting = 0
    for tile in filter(None, line):
        if tile == waiting:
            merged[-1] = 2 * tile
            gained += 2 * tile
            waiting = 0
        else:
            merged.append(tile)
            waiting = tile
    return tuple(merged) + (0,) * (len(line) - len(merged)), gained


def move(board: Board, direction: int) -> tuple[Board, int]:
    """The result of a move, before a new tile appears.

    Args:
        board: Square.
        direction: ``UP``, ``RIGHT``, ``DOWN`` or ``LEFT``.

    Returns:
        The new board, equal to the old one if nothing can move this way, and the sum of the merged tiles.
    """
    lines = board if direction in (RIGHT, LEFT) else tuple(zip(*board, strict=True))
    turn = 1 if direction in (UP, LEFT) else -1
    slid = [slide(line[::turn]) for line in lines]
    moved = tuple(line[::turn] for line, _ in slid)
    gained = sum(points for _, points in slid)
    return (moved if direction in (RIGHT, LEFT) else tuple(zip(*moved, strict=True))), gained


def open_moves(board: Board) -> list[bool]:
    """Whether each of ``UP``, ``RIGHT``, ``DOWN`` and ``LEFT`` changes anything."""
    return [move(board, direction)[0] != board for direction in (UP, RIGHT, DOWN, LEFT)]
