"""Images of grids, made of the tiles in a file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np


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
