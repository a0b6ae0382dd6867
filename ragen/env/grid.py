"""Shared by the grid games: lookups of their configurations, observation formats, and parsing of grids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragen.env.base import BaseDiscreteActionEnv
from ragen.env.checks import require
from ragen.errors import InputError, StateError

if TYPE_CHECKING:
    import numpy as np

OBSERVATION_FORMATS = ("grid", "coord", "grid_coord")
RENDER_MODES = ("text", "rgb_array")

_COORDINATES_TITLE = "Coordinates: \n"
_GRID_TITLE = "\nGrid Map: \n"

Position = tuple[int, int]


class GridEnv(BaseDiscreteActionEnv):
    """A game on a grid, rendered as text, as coordinates, or as an image on request."""

    uses_global_rng = False
    cost_hint = "cheap"

    def render(self, mode: str | None = None) -> str | np.ndarray:
        """The current observation.

        Args:
            mode: ``"text"`` or ``"rgb_array"``; None uses the configuration's ``render_mode``.

        Returns:
            Text in the configuration's ``observation_format``, or a new ``(H, W, 3)`` uint8 array.

        Raises:
            InputError: The mode is unknown.
            StateError: The environment was never reset.
        """
        shown_as = mode or self.config.render_mode
        if shown_as not in RENDER_MODES:
            raise InputError(f"{type(self).__name__}: render got mode {mode!r}, expected one of {RENDER_MODES}.")
        if not self._was_reset():
            raise StateError(f"{type(self).__name__}: render was called before the first reset.")
        return self._text() if shown_as == "text" else self._image()

    def _text(self) -> str:
        shown = self.config.observation_format
        if shown == "grid":
            return self._grid()
        if shown == "coord":
            return self._coordinates()
        return f"{_COORDINATES_TITLE}{self._coordinates()}{_GRID_TITLE}{self._grid()}"

    @abstractmethod
    def _was_reset(self) -> bool:
        """Whether the environment was reset."""

    @abstractmethod
    def _grid(self) -> str:
        """The grid, a line of symbols per row."""

    @abstractmethod
    def _coordinates(self) -> str:
        """The positions of all things; see :func:`coordinates`."""

    @abstractmethod
    def _image(self) -> np.ndarray:
        """The grid as an image."""


def coordinates(height: int, width: int, things: Iterable[tuple[str, Sequence[Position]]]) -> str:
    """The size of the board, then a line for each kind of thing on it.

    Args:
        height: Number of rows.
        width: Number of columns.
        things: The name and the (row, column) positions of each kind.
    """
    lines = [f"Board size: {height} rows x {width} cols (zero-indexed)."]
    lines += [f"{name}: {', '.join(map(str, positions))}" for name, positions in things if positions]
    return "\n".join(lines)


def read_grid(observation: str, grid_lookup: Mapping[int, str]) -> list[list[int]] | None:
    """Parse the grid of an observation.

    Args:
        observation: The result of ``render()``, in a format with the grid.
        grid_lookup: Tile to symbol, as in the configuration; symbols may be longer than a character.

    Returns:
        The tile of each cell, row by row; None if the text has no grid of these symbols.
    """
    drawn = observation.rpartition(_GRID_TITLE)[2]
    rows = [_read_row(line, grid_lookup) for line in drawn.split("\n")]
    tiles = [row for row in rows if row]
    if len(tiles) != len(rows) or len({len(row) for row in tiles}) != 1:
        return None
    return tiles


def _read_row(line: str, grid_lookup: Mapping[int, str]) -> list[int] | None:
    longest_first = sorted(grid_lookup.items(), key=lambda item: -len(item[1]))
    tiles = []
    while line:
        for tile, symbol in longest_first:
            if line.startswith(symbol):
                tiles.append(tile)
                line = line[len(symbol) :]
                break
        else:
            return None
    return tiles


def checked_lookup(env_type: str, key: str, lookup: Any, keys: Sequence[int]) -> dict[int, str]:
    """A lookup from numbers to texts, as a plain dict whose keys are ints.

    Args:
        env_type: The environment type, for messages.
        key: The key in ``env_config``, for messages.
        lookup: The configured lookup; YAML and Hydra may have converted 1 to ``"1"``.
        keys: The numbers that it must have, and no others.

    Raises:
        ConfigError: It is not a mapping, has other keys, or a value is not a text, or is empty.
    """
    expected = f"a text (not empty, one line) for each of {', '.join(map(str, keys))}, and no other keys"
    require(isinstance(lookup, Mapping), env_type, key, lookup, expected)
    numbered = {as_number(name): text for name, text in lookup.items()}
    require(len(numbered) == len(lookup) and set(numbered) == set(keys), env_type, key, dict(lookup), expected)
    fits = all(isinstance(text, str) and text and "\n" not in text for text in numbered.values())
    require(fits, env_type, key, dict(lookup), expected)
    return numbered


def checked_actions(env_type: str, lookup: Any, keys: Sequence[int]) -> dict[int, str]:
    """The ``action_lookup``: like :func:`checked_lookup`, but names must also differ in more than case.

    Raises:
        ConfigError: It is invalid.
    """
    actions = checked_lookup(env_type, "action_lookup", lookup, keys)
    distinct = len({name.lower() for name in actions.values()}) == len(actions)
    require(distinct, env_type, "action_lookup", actions, "names that differ in more than case")
    return actions


def checked_vocabulary(env_type: str, vocabulary: Any, symbols: Mapping[int, str], meanings: Sequence[str]) -> dict:
    """The ``grid_vocab``: symbol to meaning; by default made from the lookup.

    Raises:
        ConfigError: It is not a mapping of texts to texts.
    """
    if vocabulary is None:
        return {symbols[tile]: meaning for tile, meaning in enumerate(meanings)}
    fits = isinstance(vocabulary, Mapping) and all(
        isinstance(text, str) for pair in vocabulary.items() for text in pair
    )
    require(fits, env_type, "grid_vocab", vocabulary, "a mapping of symbols to what they mean, or null")
    return dict(vocabulary)


def check_choice(env_type: str, key: str, value: Any, choices: Sequence[str]) -> None:
    """Check that a value is one of some texts.

    Raises:
        ConfigError: It is not.
    """
    require(isinstance(value, str) and value in choices, env_type, key, value, f"one of {', '.join(choices)}")


def as_number(key: Any) -> Any:
    """An int for a text of digits; any other value unchanged."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
