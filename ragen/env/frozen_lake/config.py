"""Configuration of a frozen lake: its size and holes, how slippery it is, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from envlanes.ragen.seeds import SEED_LIMIT
from ragen.env.checks import Rule, integer, number, or_null
from ragen.env.grid import check_grid, numbered

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
        self.action_map = numbered(self.action_map)
        directions = Rule(
            lambda value: (
                isinstance(value, dict) and {*value} == {1, 2, 3, 4} and all(map(integer(0, 3).fits, value.values()))
            ),
            "a direction from 0 to 3 for each of 1, 2, 3, 4",
        )
        check_grid(
            self,
            SHOWN_TILES,
            size=integer(2, 100),
            p=number(0, 1),
            success_rate=number(0, 1),
            map_seed=or_null(integer(0, SEED_LIMIT - 1)),
            action_map=directions,
        )
