"""Images of the grid games' tiles, drawn with NumPy in any size, and of whole grids.

A picture is a uint8 array of shape ``(size, size, 3)``. Functions that draw *on* a picture return a new one.
"""

from __future__ import annotations

import numpy as np

Colour = tuple[int, int, int]

_MORTAR: Colour = (92, 84, 80)
_BRICK: Colour = (158, 86, 66)
_STONE: Colour = (226, 217, 196)
_STONE_EDGE: Colour = (208, 197, 172)
_MARK: Colour = (206, 58, 62)
_WOOD: Colour = (186, 130, 66)
_WOOD_DARK: Colour = (122, 78, 34)
_GREEN: Colour = (104, 158, 84)
_GREEN_DARK: Colour = (48, 96, 46)
_SKIN: Colour = (240, 198, 160)
_SHIRT: Colour = (52, 92, 176)
_ICE: Colour = (206, 230, 244)
_ICE_EDGE: Colour = (172, 206, 228)
_GLINT: Colour = (240, 249, 254)
_WATER: Colour = (26, 62, 104)
_WATER_DEEP: Colour = (12, 34, 66)
_POLE: Colour = (84, 74, 66)
_FLAG: Colour = (52, 162, 84)


def mosaic(tile_set: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The image of a grid from those of its tiles.

    Args:
        tile_set: The tiles' images, shape (kinds, size, size, 3).
        codes: The tile of each cell, shape (rows, columns).

    Returns:
        A new uint8 array of shape (rows * size, columns * size, 3).
    """
    rows, columns = codes.shape
    size = tile_set.shape[1]
    return tile_set[codes].transpose(0, 2, 1, 3, 4).reshape(rows * size, columns * size, 3)


def tile_set(*pictures: np.ndarray) -> np.ndarray:
    """Several pictures as one read-only array for :func:`mosaic`."""
    together = np.stack(pictures)
    together.setflags(write=False)
    return together


def bricks(size: int) -> np.ndarray:
    """A wall."""
    x, y = _axes(size)
    course = np.floor(y * 4)
    along = x * 2 + 0.5 * (course % 2)
    joint = ((y * 4) % 1 < 0.22) | (along % 1 < 0.12)
    return _fill(_plain(size, _BRICK), joint, _MORTAR)


def stone(size: int) -> np.ndarray:
    """A floor buffer."""
    return _fill(_plain(size, _STONE), _border(size, 0.07), _STONE_EDGE)


def ice(size: int) -> np.ndarray:
    """A sheet of ice with two glints."""
    x, y = _axes(size)
    slope = x + y
    glints = ((abs(slope - 0.62) < 0.05) | (abs(slope - 1.3) < 0.03)) & (abs(x - y) < 0.36)
    return _fill(_fill(_plain(size, _ICE), glints, _GLINT), _border(size, 0.04), _ICE_EDGE)


def crate(size: int, stored: bool = False) -> np.ndarray:
    """A box; green where it is ``stored``, that is, stands on a target."""
    light, dark = (_GREEN, _GREEN_DARK) if stored else (_WOOD, _WOOD_DARK)
    x, y = _axes(size)
    inside = (abs(x - 0.5) < 0.44) & (abs(y - 0.5) < 0.44)
    frame = inside & ((abs(x - 0.5) > 0.32) | (abs(y - 0.5) > 0.32))
    braces = inside & ((abs(x - y) < 0.07) | (abs(x + y - 1) < 0.07))
    return _fill(_fill(stone(size), inside, light), frame | braces, dark)


def marked(picture: np.ndarray) -> np.ndarray:
    """A target on a picture: a ring around a dot."""
    distance = _distance(len(picture), 0.5, 0.5)
    return _fill(picture, (distance < 0.13) | (abs(distance - 0.3) < 0.06), _MARK)


def with_hole(picture: np.ndarray) -> np.ndarray:
    """A hole in the ice."""
    x, y = _axes(len(picture))
    depth = np.hypot((x - 0.5) / 0.4, (y - 0.52) / 0.34)
    return _fill(_fill(picture, depth < 1, _WATER), depth < 0.68, _WATER_DEEP)


def with_flag(picture: np.ndarray) -> np.ndarray:
    """A flag on a pole."""
    x, y = _axes(len(picture))
    pole = (abs(x - 0.32) < 0.035) & (abs(y - 0.5) < 0.38)
    cloth = (x > 0.34) & (x < 0.82) & (abs(y - 0.3) < 0.18 * (0.82 - x) / 0.48)
    return _fill(_fill(picture, cloth, _FLAG), pole, _POLE)


def with_player(picture: np.ndarray, sunk: bool = False) -> np.ndarray:
    """A person; only the upper half if ``sunk``."""
    size = len(picture)
    x, y = _axes(size)
    drop = 0.16 if sunk else 0.0
    head = _distance(size, 0.5, 0.3 + drop) < 0.15
    body = (np.hypot((x - 0.5) / 0.24, (y - 0.92 - drop) / 0.46) < 1) & (y < (0.72 if sunk else 0.9))
    return _fill(_fill(picture, body, _SHIRT), head, _SKIN)


def _axes(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The centers of the pixels across (1, size) and down (size, 1), in parts of the picture."""
    centres = (np.arange(size) + 0.5) / size
    return centres[np.newaxis, :], centres[:, np.newaxis]


def _distance(size: int, x: float, y: float) -> np.ndarray:
    across, down = _axes(size)
    return np.hypot(across - x, down - y)


def _border(size: int, thickness: float) -> np.ndarray:
    x, y = _axes(size)
    return np.maximum(abs(x - 0.5), abs(y - 0.5)) > 0.5 - thickness


def _plain(size: int, colour: Colour) -> np.ndarray:
    return np.full((size, size, 3), colour, dtype=np.uint8)


def _fill(picture: np.ndarray, where: np.ndarray, colour: Colour) -> np.ndarray:
    painted = picture.copy()
    painted[np.broadcast_to(where, picture.shape[:2])] = colour
    return painted
