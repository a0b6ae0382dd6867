"""FrozenLake with RAGEN's lakes and slips (gymnasium's FrozenLake-v1).

The state is the player's cell and the generator ``numpy.random.default_rng(seed)``. Every step takes a uniform number
from it, even if it cannot slip or move.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ragen.env.base import StepResult, snapshots
from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.grid import GridEnv, coordinates, mosaic
from ragen.errors import LevelError

FROZEN, HOLE, GOAL = range(3)

ROUND_LIMIT = 100_000  # boards drawn before reset fails

_TILES = Path(__file__).with_name("tiles.png")  # in the order of grid_lookup, 64 x 64 pixels each

_PLAYER_ON = {FROZEN: 0, HOLE: 4, GOAL: 5}  # in the order of grid_lookup
_WITHOUT_PLAYER = {FROZEN: 1, HOLE: 2, GOAL: 3}
_PLAYER_LINE = {FROZEN: "Player", HOLE: "Player in hole", GOAL: "Player on goal"}


class FrozenLakeEnv(GridEnv):
    """Walk over the ice to the goal; holes and the goal end the episode."""

    config_class = FrozenLakeEnvConfig

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        """Make the lake of a seed, or of the configuration's ``map_seed``; see :meth:`BaseEnv.reset`."""
        return super().reset(self.config.map_seed if seed is None else seed, mode)

    def _begin(self, seed: int, mode: str | None) -> None:
        """Make a lake.

        Raises:
            LevelError: No lake with a path to the goal was found.
        """
        self._lake = generate_lake(self.config.size, self.config.p, seed)
        self._cell, self._rng = self._lake.start, np.random.default_rng(seed)
        self._rng.random()  # gymnasium's, for the start

    save, load = snapshots("seed", "_lake", "_rng", "_cell")

    def _play(self, action: int) -> StepResult:
        """Move the player by one cell, or slip; see :meth:`BaseEnv.step`.

        Args:
            action: A key of ``config.action_lookup``.

        Returns:
            The observation; 1 on arriving at the goal, else 0; whether the player is on the goal or in a hole; info.
        """
        direction = self.config.action_map[action]
        number = self._rng.random()
        if self.config.is_slippery:
            direction = (direction + self._slip(number)) % 4
        before, tiles_here = self._cell, self._lake.tiles
        if tiles_here[before] == FROZEN:
            self._cell = neighbours(self.config.size)[direction][before]
        moved = self._cell != before
        tile = tiles_here[self._cell]
        info = {"action_is_effective": moved, "action_is_valid": True, "success": tile == GOAL}
        return self.render(), int(moved and tile == GOAL), tile != FROZEN, info

    def _slip(self, number: float) -> int:
        """Number of quarter turns by which this step is off: -1, 0 or 1."""
        side = (1.0 - self.config.success_rate) / 2.0
        limits = accumulate((side, self.config.success_rate, side))
        # Above the sum, which rounding may leave below 1, numpy's argmax is 0.
        return next((turns for turns, limit in zip((-1, 0, 1), limits, strict=True) if number < limit), -1)

    def _codes(self) -> list[list[int]]:
        """The keys of ``grid_lookup``, row by row."""
        lake, tiles_here = self._lake, self._lake.tiles
        codes = [_WITHOUT_PLAYER[tile] for tile in tiles_here]
        codes[self._cell] = _PLAYER_ON[tiles_here[self._cell]]
        return [codes[at : at + lake.size] for at in range(0, len(codes), lake.size)]

    def _grid(self) -> str:
        symbols = self.config.grid_lookup
        return "\n".join("".join(map(symbols.__getitem__, row)) for row in self._codes())

    def _coordinates(self) -> str:
        lake = self._lake
        size = lake.size
        holes = [divmod(cell, size) for cell, tile in enumerate(lake.tiles) if tile == HOLE]
        return coordinates(
            size,
            size,
            (
                ("Start", [divmod(lake.start, size)]),
                ("Goal", [divmod(lake.goal, size)]),
                (_PLAYER_LINE[lake.tiles[self._cell]], [divmod(self._cell, size)]),
                ("Holes", holes),
            ),
        )

    def _image(self) -> np.ndarray:
        return mosaic(_TILES, np.array(self._codes()))


# The lake of a seed. One generator draws boards, and a start and a goal for each, until the goal can be reached. The
# tiles are bytes, row by row; a *cell* is an index into them.


class Lake(NamedTuple):
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
    cells, last = [divmod(cell, size) for cell in range(size * size)], size - 1
    return tuple(
        tuple(min(max(row + down, 0), last) * size + min(max(column + right, 0), last) for row, column in cells)
        for down, right in ((0, -1), (1, 0), (0, 1), (-1, 0))
    )
