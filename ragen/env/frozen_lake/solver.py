"""Finds a path over a frozen lake from its text."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import neighbours
from ragen.env.grid import read_grid

_PLAYER, _FROZEN, _HOLE, _GOAL, _PLAYER_IN_HOLE, _PLAYER_ON_GOAL = range(6)  # as in grid_lookup


def solve(
    observation: str,
    grid_lookup: Mapping[int, str] | None = None,
    action_lookup: Mapping[int, str] | None = None,
    slippery: bool = False,
) -> list[str] | None:
    """The path from the player to the goal.

    Args:
        observation: The rendered text, in the format ``grid`` or ``grid_coord``.
        grid_lookup: The symbols of the tiles; None for the defaults.
        action_lookup: The names of left (1), down (2), right (3) and up (4), likewise.
        slippery: Whether to minimize the slips that end in a hole, instead of the length. After a slip, a new path is
            needed.

    Returns:
        The names of the actions, none if the player is on the goal; None if it is in a hole, there is no path, or the
        observation is not such a grid.
    """
    defaults = FrozenLakeEnvConfig()
    rows = read_grid(observation, grid_lookup or defaults.grid_lookup)
    if not rows or len(rows) != len(rows[0]):
        return None
    tiles = [tile for row in rows for tile in row]
    if _PLAYER_ON_GOAL in tiles:
        return []
    if tiles.count(_PLAYER) != 1:
        return None
    directions = _search(tiles, neighbours(len(rows)), slippery)
    names = action_lookup or defaults.action_lookup
    return None if directions is None else [names[direction + 1] for direction in directions]


def _search(tiles: list[int], moves: tuple[tuple[int, ...], ...], slippery: bool) -> list[int] | None:
    """Directions of the path with the least (risk, length)."""
    reached = set()
    queue: list[tuple[int, int, int, list[int]]] = [(0, 0, tiles.index(_PLAYER), [])]
    while queue:
        risk, length, cell, way = heappop(queue)
        if tiles[cell] == _GOAL:
            return way
        if cell in reached:
            continue
        reached.add(cell)
        for direction, ahead in enumerate(moves):
            if tiles[ahead[cell]] != _HOLE and ahead[cell] not in reached:
                sides = (moves[direction - 1][cell], moves[(direction + 1) % 4][cell])
                danger = sum(tiles[side] == _HOLE for side in sides) if slippery else 0
                heappush(queue, (risk + danger, length + 1, ahead[cell], [*way, direction]))
    return None
