"""Configuration of Sokoban: the room, the search for its levels, and the observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragen.env.checks import Rule, check, integer, or_null
from ragen.env.grid import check_grid
from ragen.env.sokoban.level import TILE_NAMES


@dataclass
class SokobanEnvConfig:
    """Configuration of :class:`~ragen.env.sokoban.env.SokobanEnv`.

    Attributes:
        dim_room: Rows and columns, including the outer walls; 3 to 100 each.
        max_steps: Maximum number of steps; the episode then ends, solved or not.
        num_boxes: Number of boxes, and of targets.
        search_depth: Depth in moves of the search for an initial state; a deeper search allows longer solutions.
        grid_lookup: Tile to symbol. Tiles: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on
            target. Symbols may be longer than a character.
        grid_vocab: Symbol to meaning, for the prompt; None for the names of the tiles in ``grid_lookup``.
        action_lookup: Number to name of the moves up (1), down (2), left (3) and right (4).
        dim_x: Rows; with ``dim_y``, the columns, it replaces ``dim_room``, as in RAGEN. Ignored without ``dim_y``.
        dim_y: See ``dim_x``.
        render_mode: ``"text"``, or ``"rgb_array"`` for images with 16 x 16 pixels per tile.
        observation_format: The content of text observations: the ``"grid"``, coordinates (``"coord"``) or both
            (``"grid_coord"``).
    """

    dim_room: tuple[int, int] = (6, 6)
    max_steps: int = 100
    num_boxes: int = 3
    search_depth: int = 300
    grid_lookup: dict[int, str] = field(default_factory=lambda: dict(enumerate("#_O√XPS")))
    grid_vocab: dict[str, str] | None = None
    action_lookup: dict[int, str] = field(default_factory=lambda: {1: "Up", 2: "Down", 3: "Left", 4: "Right"})
    dim_x: int | None = None
    dim_y: int | None = None
    render_mode: Literal["text", "rgb_array"] = "text"
    observation_format: Literal["grid", "coord", "grid_coord"] = "grid"

    def __post_init__(self) -> None:
        """Check every value, and convert the lookups to plain dicts with int keys.

        Raises:
            ConfigError: A value is invalid.
        """
        size = integer(3, 100)
        if self.dim_x is not None and self.dim_y is not None:
            self.dim_room = (self.dim_x, self.dim_y)
        room = Rule(
            lambda sizes: isinstance(sizes, Sequence) and list(map(size.fits, sizes)) == [True, True],
            f"rows and columns, each {size.expected}",
        )
        check_grid(self, TILE_NAMES, dim_x=or_null(size), dim_y=or_null(size), dim_room=room)
        rows, columns = self.dim_room
        self.dim_room = rows, columns
        # So that player and boxes have room to move, and that every box can be moved.
        boxes = integer(1, (rows - 2) * (columns - 2) - 2)
        check(self, num_boxes=boxes, search_depth=integer(self.num_boxes + 2))
