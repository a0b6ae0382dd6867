"""Shared by the grid games: lookups of their configurations, observation formats, and parsing of grids."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ragen.env.base import BaseDiscreteActionEnv
from ragen.env.checks import Rule, check, names_for, or_null, require
from ragen.env.game import GameEnv
from ragen.errors import InputError, StateError

RENDER_MODES = ("text", "rgb_array")

_GRID_TITLE = "\nGrid Map: \n"

Position = tuple[int, int]


class GridEnv(GameEnv, BaseDiscreteActionEnv):
    """A game on a grid, rendered as text, as coordinates, or as an image on request."""

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
        if self.seed is None:
            raise StateError(f"{type(self).__name__}: render was called before the first reset.")
        return self._text() if shown_as == "text" else self._image()

    def _text(self) -> str:
        shown = self.config.observation_format
        if shown == "grid":
            return self._grid()
        if shown == "coord":
            return self._coordinates()
        return f"Coordinates: \n{self._coordinates()}{_GRID_TITLE}{self._grid()}"

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
    tiles = {symbol: tile for tile, symbol in reversed([*grid_lookup.items()])}
    symbol = re.compile("|".join(map(re.escape, sorted(tiles, key=len, reverse=True))))
    lines = observation.rpartition(_GRID_TITLE)[2].split("\n")
    rows = [symbol.findall(line) for line in lines]
    if len(set(map(len, rows))) != 1 or not rows[0] or ["".join(row) for row in rows] != lines:
        return None
    return [[tiles[found] for found in row] for row in rows]


def check_grid(config: Any, tiles: Sequence[str], **rules: Rule) -> None:
    """Check a configuration of a grid game, and convert its lookups to plain dicts with int keys.

    Args:
        config: The configuration.
        tiles: The names of the tiles, in the order of the keys of ``grid_lookup``.
        rules: The rules of its other keys; see :func:`ragen.env.checks.check`.

    Raises:
        ConfigError: A value is invalid.
    """
    config.grid_lookup, config.action_lookup = numbered(config.grid_lookup), numbered(config.action_lookup)
    words = Rule(
        lambda value: (
            isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)
        ),
        "a mapping of symbols to what they mean",
    )
    check(
        config,
        grid_lookup=names_for(range(len(tiles))),
        grid_vocab=or_null(words),
        action_lookup=names_for(range(1, 5)),
        **rules,
    )
    names = config.action_lookup
    distinct = len({name.lower() for name in names.values()}) == len(names)
    require(distinct, config, "action_lookup", "names that differ in more than case")
    config.grid_vocab = dict(config.grid_vocab or zip(config.grid_lookup.values(), tiles, strict=True))


def numbered(lookup: Any) -> Any:
    """A mapping as a dict, with ints for keys that YAML and Hydra convert to texts; other values unchanged."""
    if not isinstance(lookup, Mapping):
        return lookup
    found = {int(key) if isinstance(key, str) and key.isdecimal() else key: value for key, value in lookup.items()}
    return found if len(found) == len(lookup) else dict(lookup)


# Images


@lru_cache(maxsize=4)
def read_tiles(path: Path) -> np.ndarray:
    """The tiles of a picture, square ones below each other; read-only, shape (kinds, size, size, 3)."""
    from PIL import Image

    picture = np.asarray(Image.open(path).convert("RGB"))
    return picture.reshape(-1, picture.shape[1], picture.shape[1], 3)


def mosaic(path: Path, codes: np.ndarray) -> np.ndarray:
    """The image of a grid.

    Args:
        path: The file with its tiles.
        codes: The tile of each cell, shape (rows, columns).

    Returns:
        A new uint8 array of shape (rows * size, columns * size, 3).
    """
    tiles, (rows, columns) = read_tiles(path), codes.shape
    size = tiles.shape[1]
    return tiles[codes].transpose(0, 2, 1, 3, 4).reshape(rows * size, columns * size, 3)
