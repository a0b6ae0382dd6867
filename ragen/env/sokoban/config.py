"""Configuration of Sokoban: the room, the search for its levels, and the observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragen.env.checks import is_integer, require
from ragen.env.grid import (
    OBSERVATION_FORMATS,
    RENDER_MODES,
    check_choice,
    checked_actions,
    checked_lookup,
    checked_vocabulary,
)
from ragen.env.sokoban.level import TILE_NAMES

_TYPE = "sokoban"
_SMALLEST, _LARGEST = 3, 100


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
        self._check_room()
        self._check_numbers()
        check_choice(_TYPE, "render_mode", self.render_mode, RENDER_MODES)
        check_choice(_TYPE, "observation_format", self.observation_format, OBSERVATION_FORMATS)
        self.grid_lookup = checked_lookup(_TYPE, "grid_lookup", self.grid_lookup, range(len(TILE_NAMES)))
        self.grid_vocab = checked_vocabulary(_TYPE, self.grid_vocab, self.grid_lookup, TILE_NAMES)
        self.action_lookup = checked_actions(_TYPE, self.action_lookup, range(1, 5))

    def _check_room(self) -> None:
        between = f"an integer from {_SMALLEST} to {_LARGEST}"
        for key in ("dim_x", "dim_y"):
            size = getattr(self, key)
            require(size is None or is_integer(size, _SMALLEST, _LARGEST), _TYPE, key, size, f"{between}, or null")
        if self.dim_x is not None and self.dim_y is not None:
            self.dim_room = (self.dim_x, self.dim_y)
        sizes = self.dim_room
        fits = isinstance(sizes, Sequence) and [is_integer(size, _SMALLEST, _LARGEST) for size in sizes] == [True, True]
        require(fits, _TYPE, "dim_room", sizes, f"rows and columns, each {between}")
        self.dim_room = (sizes[0], sizes[1])

    def _check_numbers(self) -> None:
        for key in ("max_steps", "num_boxes"):
            require(is_integer(getattr(self, key), 1), _TYPE, key, getattr(self, key), "an integer from 1")
        rows, columns = self.dim_room
        most = (rows - 2) * (columns - 2) - 2
        expected = f"at most {most}, so that player and boxes have room to move in dim_room={self.dim_room}"
        require(self.num_boxes <= most, _TYPE, "num_boxes", self.num_boxes, expected)
        least = self.num_boxes + 2
        expected = f"an integer from {least} (num_boxes + 2), so that every box can be moved"
        require(is_integer(self.search_depth, least), _TYPE, "search_depth", self.search_depth, expected)
