"""The frozen lake of a seed, equal to RAGEN's.

One ``numpy.random.default_rng(seed)`` draws boards, and a start and a goal for each, until the goal can be reached. The
tiles are bytes, row by row; a *cell* is an index into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ragen.errors import LevelError

FROZEN, HOLE, GOAL = range(3)

LEFT, DOWN, RIGHT, UP = range(4)

ROUND_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake; immutable and shared by environments.

    Attributes:
        size: Rows, and columns.
        tiles: One byte a cell: FROZEN (the start as well), HOLE or GOAL.
        start: The cell where the player starts.
        goal: The goal's cell.
    """

    size: int
    tiles: bytes
    start: int
    goal: int


@lru_cache(maxsize=4096)
def generate_lake(size: int, frozen: float, seed: int) -> Lake:
    """The lake of a seed; a few thousand are cached.

    Args:
        size: Rows, and columns, at least 2.
        frozen: The fraction of frozen cells, 0 to 1.
        seed: Not negative.

    Raises:
        LevelError: Too many consecutive boards had no path from start to goal.
    """
    rng = np.random.default_rng(seed)
    limit = frozen / (frozen + (1.0 - frozen))  # RAGEN's draw divides by the sum of the probabilities
    for _ in range(ROUND_LIMIT):
        tiles = bytearray((rng.random(size * size) >= limit).tobytes())  # bytes of False and True: FROZEN and HOLE
        start_row, start_column = rng.integers(size, size=2).tolist()
        goal_row, goal_column = rng.integers(size, size=2).tolist()
        start, goal = start_row * size + start_column, goal_row * size + goal_column
        if start == goal:
            continue
        tiles[start], tiles[goal] = FROZEN, GOAL
        if _reaches(tiles, size, start, goal):
            return Lake(size, bytes(tiles), start, goal)
    raise LevelError(
        f"frozen_lake: no lake found for seed {seed} with size={size}, p={frozen}: none of {ROUND_LIMIT} boards had a "
        "way from start to goal. Use a larger p (the share of frozen cells)."
    )


def _reaches(tiles: bytearray, size: int, start: int, goal: int) -> bool:
    """Whether a path around the holes leads from start to goal."""
    moves = neighbours(size)
    seen = {start}
    frontier = [start]
    while frontier:
        cell = frontier.pop()
        for direction in moves:
            ahead = direction[cell]
            if ahead == goal:
                return True
            if tiles[ahead] != HOLE and ahead not in seen:
                seen.add(ahead)
                frontier.append(ahead)
    return False


@lru_cache(maxsize=64)
def neighbours(size: int) -> tuple[tuple[int, ...], ...]:
    """For each direction and cell, the cell that a step leads to; at the edge it is the same cell."""
    cells = [divmod(cell, size) for cell in range(size * size)]
    last = size - 1
    return (
        tuple(row * size + max(column - 1, 0) for row, column in cells),
        tuple(min(row + 1, last) * size + column for row, column in cells),
        tuple(row * size + min(column + 1, last) for row, column in cells),
        tuple(max(row - 1, 0) * size + column for row, column in cells),
    )
