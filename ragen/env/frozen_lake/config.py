"""Configuration of a frozen lake: its size and holes, how slippery it is, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from envlanes.ragen.seeds import SEED_LIMIT
from ragen.env.checks import is_integer, is_number, require
from ragen.env.grid import (
    OBSERVATION_FORMATS,
    RENDER_MODES,
    as_number,
    check_choice,
    checked_actions,
    checked_lookup,
    checked_vocabulary,
)

_TYPE = "frozen_lake"
_ACTIONS = range(1, 5)

SHOWN_TILES = ("player", "empty", "hole", "goal", "player in hole", "player on goal")
"""The tiles that ``grid_lookup`` gives symbols to, in the order of its keys."""


@dataclass
class FrozenLakeEnvConfig:
    """Configuration of :class:`~ragen.env.frozen_lake.env.FrozenLakeEnv`; the defaults are those of RAGEN 2025.

    RAGEN 2026 has ``p: 0.9`` and ``success_rate: 0.8``.

    Attributes:
        size: Rows, and columns; 2 to 100.
        p: The fraction of cells that are frozen and not holes, 0 to 1.
        is_slippery: Whether a step may slip to the left or right of its direction.
        success_rate: Probability of not slipping, 0 to 1; both sides are equally likely.
        map_seed: The seed of a ``reset()`` without one; None draws one. As in RAGEN, a seed of ``reset`` takes
            precedence.
        action_map: Action to direction: left (0), down (1), right (2), up (3).
        grid_lookup: Tile to symbol. Tiles: 0 player, 1 frozen, 2 hole, 3 goal, 4 player in a hole, 5 player on the
            goal. Symbols may be longer than a character.
        grid_vocab: Symbol to meaning, for prompts; None uses the symbols of ``grid_lookup``.
        action_lookup: Number to name of the actions 1 to 4.
        render_mode: ``"text"``, or ``"rgb_array"`` for images of 64 x 64 pixels a cell.
        observation_format: The content of texts: the ``"grid"``, coordinates (``"coord"``) or both (``"grid_coord"``).
    """

    size: int = 4
    p: float = 0.8
    is_slippery: bool = True
    success_rate: float = 1 / 3
    map_seed: int | None = None
    action_map: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 1, 3: 2, 4: 3})
    grid_lookup: dict[int, str] = field(default_factory=lambda: dict(enumerate("P_OGX√")))
    grid_vocab: dict[str, str] | None = None
    action_lookup: dict[int, str] = field(default_factory=lambda: {1: "Left", 2: "Down", 3: "Right", 4: "Up"})
    render_mode: Literal["text", "rgb_array"] = "text"
    observation_format: Literal["grid", "coord", "grid_coord"] = "grid"

    def __post_init__(self) -> None:
        """Check every value, and make plain dicts with int keys of the lookups.

        Raises:
            ConfigError: A value is invalid.
        """
        require(is_integer(self.size, 2, 100), _TYPE, "size", self.size, "an integer from 2 to 100")
        for key in ("p", "success_rate"):
            require(is_number(getattr(self, key), 0, 1), _TYPE, key, getattr(self, key), "a number from 0 to 1")
        require(isinstance(self.is_slippery, bool), _TYPE, "is_slippery", self.is_slippery, "true or false")
        seed_fits = self.map_seed is None or is_integer(self.map_seed, 0, SEED_LIMIT - 1)
        require(seed_fits, _TYPE, "map_seed", self.map_seed, "an integer from 0 to 2**32 - 1, or null")
        check_choice(_TYPE, "render_mode", self.render_mode, RENDER_MODES)
        check_choice(_TYPE, "observation_format", self.observation_format, OBSERVATION_FORMATS)
        self.grid_lookup = checked_lookup(_TYPE, "grid_lookup", self.grid_lookup, range(len(SHOWN_TILES)))
        self.grid_vocab = checked_vocabulary(_TYPE, self.grid_vocab, self.grid_lookup, SHOWN_TILES)
        self.action_lookup = checked_actions(_TYPE, self.action_lookup, _ACTIONS)
        self._check_action_map()

    def _check_action_map(self) -> None:
        expected = "a direction from 0 to 3 for each of 1, 2, 3, 4"
        require(isinstance(self.action_map, Mapping), _TYPE, "action_map", self.action_map, expected)
        numbered = {as_number(key): value for key, value in self.action_map.items()}
        fits = set(numbered) == set(_ACTIONS) and all(is_integer(value, 0, 3) for value in numbered.values())
        require(fits, _TYPE, "action_map", self.action_map, expected)
        self.action_map = numbered
