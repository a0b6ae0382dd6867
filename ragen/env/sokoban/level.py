"""Tiles, the shape of rooms, and levels of Sokoban.

A room is stored as its tiles row by row, with a line break after each row. A *cell* is an index into these,
``row * stride + column`` with ``stride = width + 1``. The line break is a separate tile that nothing can enter, so a
room is rendered by looking up its tiles one by one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET, LINE_BREAK = range(8)

TILE_NAMES = ("wall", "empty", "target", "box on target", "box", "player", "player on target")
"""The names of the tiles in ``grid_lookup``, in the order of its keys."""

Position = tuple[int, int]


class Level(NamedTuple):
    """The initial state of a level. It is immutable, so environments may share it.

    Attributes:
        fixed: Walls, floor and targets, one tile per cell.
        room: The same with boxes and player.
        player: The player's cell.
    """

    fixed: bytes
    room: bytes
    player: int


_WALK_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_STAMPS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)


class RoomShape:
    """The tables that all rooms of one height and width share.

    Attributes:
        height: Rows, including the outer walls; at least 3.
        width: Columns, including the outer walls; at least 3.
        stride: The offset from a cell to the one below it.
        deltas: The offsets from a cell to the one above, below, left and right of it.
        interior: The cells that are not on the border, row by row.
        walks: For each direction (down, right, up, left) and each cell, the next cell of a walk inside the border.
        stamps: For each shape that a walk stamps, the offsets of its cells.
    """

    def __init__(self, height: int, width: int) -> None:
        """Compute them; :func:`room_shape` does so once."""
        self.height, self.width, self.stride = height, width, width + 1
        stride = self.stride
        self.deltas = -stride, stride, -1, 1
        self.interior = [row * stride + column for row in range(1, height - 1) for column in range(1, width - 1)]
        cells = [divmod(cell, stride) for cell in range(height * stride)]
        self.walks = [
            [
                min(max(row + down, 1), height - 2) * stride + min(max(column + right, 1), width - 2)
                for row, column in cells
            ]
            for down, right in _WALK_DIRECTIONS
        ]
        self.stamps = [[down * stride + right for down, right in stamp] for stamp in _STAMPS]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as height and width; the tables are the same in every process."""
        return room_shape, (self.height, self.width)

    def position(self, cell: int) -> Position:
        """Row and column of a cell."""
        return divmod(cell, self.stride)

    def empty(self) -> bytearray:
        """A room of walls."""
        return bytearray((bytes([WALL]) * self.width + bytes([LINE_BREAK])) * self.height)[:-1]


@lru_cache(maxsize=64)
def room_shape(height: int, width: int) -> RoomShape:
    """The shape of rooms of a height and width, both at least 3; computed once."""
    return RoomShape(height, width)
