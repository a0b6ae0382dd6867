"""Tiles, the shape of rooms, and levels of Sokoban.

A room is stored as its tiles row by row, with a line break after each row. A *cell* is an index into these,
``row * stride + column`` with ``stride = width + 1``. The line break is a separate tile that nothing can enter, so a
room is rendered by looking up its tiles one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET, LINE_BREAK = range(8)

TILE_NAMES = ("wall", "empty", "target", "box on target", "box", "player", "player on target")
"""The names of the tiles in ``grid_lookup``, in the order of its keys."""

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Level:
    """The initial state of a level. It is immutable, so environments may share it.

    Attributes:
        fixed: Walls, floor and targets, one tile per cell.
        room: The same with boxes and player.
        player: The player's cell.
    """

    fixed: bytes
    room: bytes
    player: int


@dataclass(frozen=True)
class RoomShape:
    """The tables that all rooms of one height and width share.

    Attributes:
        height: Rows, including the outer walls.
        width: Columns, including the outer walls.
        stride: The offset from a cell to the one below it.
        interior: The cells that are not on the border, row by row.
        walks: For each direction (down, right, up, left) and each cell, the next cell of a walk inside the border.
        stamps: For each shape that a walk stamps, the offsets of its cells.
    """

    height: int
    width: int
    stride: int
    interior: tuple[int, ...]
    walks: tuple[tuple[int, ...], ...]
    stamps: tuple[tuple[int, ...], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as height and width; the tables are the same in every process."""
        return room_shape, (self.height, self.width)

    @property
    def deltas(self) -> tuple[int, int, int, int]:
        """The offsets from a cell to the one above, below, left and right of it."""
        return -self.stride, self.stride, -1, 1

    def position(self, cell: int) -> Position:
        """Row and column of a cell."""
        return divmod(cell, self.stride)

    def empty(self) -> bytearray:
        """A room of walls."""
        return bytearray((bytes([WALL]) * self.width + bytes([LINE_BREAK])) * self.height)[:-1]


_WALK_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_STAMPS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)


@lru_cache(maxsize=64)
def room_shape(height: int, width: int) -> RoomShape:
    """The tables of a height and width, both at least 3; computed once."""
    stride = width + 1
    cells = [(row, column) for row in range(height) for column in range(stride)]

    def clamped(row: int, column: int) -> int:
        return min(max(row, 1), height - 2) * stride + min(max(column, 1), width - 2)

    return RoomShape(
        height,
        width,
        stride,
        interior=tuple(row * stride + column for row in range(1, height - 1) for column in range(1, width - 1)),
        walks=tuple(
            tuple(clamped(row + down, column + right) for row, column in cells) for down, right in _WALK_DIRECTIONS
        ),
        stamps=tuple(tuple(down * stride + right for down, right in stamp) for stamp in _STAMPS),
    )
