"""Sokoban, played on the levels and with the rewards of RAGEN (gym_sokoban).

The state is one byte a cell. A step changes two or three of them, and text is looked up from them; nothing is painted
unless ``render_mode`` asks for images.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ragen.env import tiles
from ragen.env.base import snapshots
from ragen.env.checks import check_action, check_was_reset, checked_seed
from ragen.env.grid import GridEnv, Position, coordinates
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.generator import LevelSpec, generate_level
from ragen.env.sokoban.level import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    LINE_BREAK,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    Level,
    room_shape,
)

TILE_PIXELS = 16

STEP_REWARD = -0.1
BOX_REWARD = 1  # for a box pushed onto a target, and taken back for one pushed off it
SOLVED_REWARD = 10

_LISTED = (
    (BOX, "Boxes"),
    (BOX_ON_TARGET, "Boxes on target"),
    (PLAYER, "Player"),
    (PLAYER_ON_TARGET, "Player on target"),
)


class SokobanEnv(GridEnv):
    """Push all boxes onto targets.

    A box moves one cell when the player walks into it and the cell behind it is free; it cannot be pulled.
    """

    config_class = SokobanEnvConfig

    def __init__(self, config: SokobanEnvConfig | None = None) -> None:
        """Take a configuration; no level is made before ``reset``."""
        self.config = config or SokobanEnvConfig()
        rows, columns = self.config.dim_room
        self._spec = LevelSpec(rows, columns, self.config.num_boxes, self.config.search_depth)
        self._shape = room_shape(rows, columns)
        self._deltas = dict(enumerate(self._shape.deltas, start=1))
        self._symbols = [*(self.config.grid_lookup[tile] for tile in range(LINE_BREAK)), "\n"]
        self._level: Any = None  # a Level once reset
        self._room = bytearray()
        self._fixed = b""
        self._player = 0
        self._steps = 0
        self._boxes_on_target = 0

    def reset(self, seed: int | None = None, mode: str | None = None) -> str | np.ndarray:
        """Make the level of a seed; see :meth:`BaseEnv.reset`.

        Raises:
            InputError: The seed is not an integer from 0 to 2**32 - 1.
            LevelError: The configuration has no levels, or hardly any.
        """
        self._start(generate_level(self._spec, checked_seed("sokoban", seed)))
        return self.render()

    def _start(self, level: Level) -> None:
        self._level = level
        self._room = bytearray(level.room)
        self._fixed = level.fixed
        self._player = level.player
        self._steps = 0
        self._boxes_on_target = 0

    save, load = snapshots("_level", "_room", "_fixed", "_player", "_steps", "_boxes_on_target")

    def step(self, action: int) -> tuple[str | np.ndarray, float, bool, dict[str, Any]]:
        """Move the player one cell, if it can; see :meth:`BaseEnv.step`.

        Args:
            action: 1 up, 2 down, 3 left, 4 right.

        Returns:
            The observation; -0.1, plus 1 for a box pushed onto a target or minus 1 for one pushed off it, plus 10 if
            the level is solved; whether it is solved or this was step ``max_steps``; and info.

        Raises:
            InputError: There is no such action.
            StateError: The environment was never reset.
        """
        check_was_reset("sokoban", self._level is not None)
        check_action("sokoban", action, self.config.action_lookup)
        before = self._boxes_on_target
        moved = self._move(self._deltas[action])
        self._steps += 1
        solved = self._boxes_on_target == self.config.num_boxes
        reward = STEP_REWARD + BOX_REWARD * (self._boxes_on_target - before)
        if solved:
            reward += SOLVED_REWARD
        done = solved or self._steps == self.config.max_steps
        info = {"action_is_effective": moved, "action_is_valid": True, "success": solved}
        return self.render(), reward, done, info

    def _move(self, delta: int) -> bool:
        """Walk or push; False if the way is blocked."""
        room, fixed, player = self._room, self._fixed, self._player
        ahead = player + delta
        tile = room[ahead]
        if tile in (BOX, BOX_ON_TARGET):
            behind = ahead + delta
            if room[behind] not in (FLOOR, TARGET):
                return False
            onto_target = fixed[behind] == TARGET
            room[behind] = BOX_ON_TARGET if onto_target else BOX
            self._boxes_on_target += onto_target - (tile == BOX_ON_TARGET)
        elif tile not in (FLOOR, TARGET):
            return False
        room[player] = fixed[player]
        room[ahead] = PLAYER_ON_TARGET if fixed[ahead] == TARGET else PLAYER
        self._player = ahead
        return True

    @property
    def player_position(self) -> Position:
        """Row and column of the player."""
        return self._shape.position(self._player)

    @property
    def box_mapping(self) -> dict[Position, Position]:
        """Of each target, where the box that was pulled away from it stood at the start; (row, column) each."""
        return dict(self._level.boxes) if self._level else {}

    @property
    def room_fixed(self) -> np.ndarray:
        """Walls (0), floor (1) and targets (2), shape (rows, columns), uint8."""
        return self._as_array(self._fixed)

    @property
    def room_state(self) -> np.ndarray:
        """The same with boxes on targets (3), boxes (4) and the player (5), on a target or not."""
        room = self._as_array(self._room)
        room[room == PLAYER_ON_TARGET] = PLAYER
        return room

    def _as_array(self, room: bytes | bytearray) -> np.ndarray:
        padded = np.frombuffer(bytes(room) + bytes([LINE_BREAK]), dtype=np.uint8)
        return padded.reshape(self._shape.height, self._shape.stride)[:, :-1].copy()

    def _was_reset(self) -> bool:
        return self._level is not None

    def _grid(self) -> str:
        return "".join(map(self._symbols.__getitem__, self._room))

    def _coordinates(self) -> str:
        targets = [self._shape.position(cell) for cell, tile in enumerate(self._fixed) if tile == TARGET]
        found: dict[int, list[Position]] = {tile: [] for tile, _ in _LISTED}
        for cell, tile in enumerate(self._room):
            if tile in found:
                found[tile].append(self._shape.position(cell))
        things = [("Targets", targets), *((name, found[tile]) for tile, name in _LISTED)]
        return coordinates(self._shape.height, self._shape.width, things)

    def _image(self) -> np.ndarray:
        return tiles.mosaic(_tile_set(), self._as_array(self._room))


@lru_cache(maxsize=1)
def _tile_set() -> np.ndarray:
    """The pictures of all tiles, in the order of their numbers; shape (7, 16, 16, 3)."""
    floor = tiles.stone(TILE_PIXELS)
    target = tiles.marked(floor)
    return tiles.tile_set(
        tiles.bricks(TILE_PIXELS),
        floor,
        target,
        tiles.crate(TILE_PIXELS, stored=True),
        tiles.crate(TILE_PIXELS),
        tiles.with_player(floor),
        tiles.with_player(target),
    )
