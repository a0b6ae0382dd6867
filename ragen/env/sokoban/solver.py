"""Solves a Sokoban level from its text observation.

The search is breadth-first over the positions of player and boxes, so solutions have the fewest moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ragen.env.grid import read_grid
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.level import BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

NODE_LIMIT = 200_000


def solve(
    observation: str, grid_lookup: Mapping[int, str] | None = None, action_lookup: Mapping[int, str] | None = None
) -> list[str] | None:
    """The shortest solution of a level.

    Args:
        observation: The rendered state, in the format ``grid`` or ``grid_coord``.
        grid_lookup: The symbols of the tiles; None are the configuration's defaults.
        action_lookup: The names of the moves up (1), down (2), left (3) and right (4), likewise.

    Returns:
        The names of the moves, none if the level is solved; None if there is no solution, none was found among
        ``NODE_LIMIT`` states, or the observation is not such a grid.
    """
    defaults = SokobanEnvConfig()
    rows = read_grid(observation, grid_lookup or defaults.grid_lookup) or [[]]
    stride = len(rows[0]) + 1

    def cells(*wanted: int) -> frozenset[int]:
        return frozenset(r * stride + c for r, row in enumerate(rows) for c, tile in enumerate(row) if tile in wanted)

    players = cells(PLAYER, PLAYER_ON_TARGET)
    if len(players) != 1:
        return None
    floor = cells(*set(range(PLAYER_ON_TARGET + 1)) - {WALL})
    targets = cells(TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)
    deltas = (-stride, stride, -1, 1)
    useful = _useful_cells(floor, targets, deltas)
    start = min(players), cells(BOX, BOX_ON_TARGET)
    ways: dict[tuple[int, frozenset[int]], tuple[int, ...]] = {start: ()}
    queue = deque([start])
    while queue and len(ways) <= NODE_LIMIT:
        state = player, boxes = queue.popleft()
        if boxes <= targets:
            return [(action_lookup or defaults.action_lookup)[move] for move in ways[state]]
        for move, delta in enumerate(deltas, start=1):
            ahead, behind = player + delta, player + 2 * delta
            after = ahead, boxes
            if ahead in boxes and behind in useful and behind not in boxes:
                after = ahead, boxes - {ahead} | {behind}
            elif ahead not in floor or ahead in boxes:
                continue
            if after not in ways:
                ways[after] = (*ways[state], move)
                queue.append(after)
    return None


def _useful_cells(floor: frozenset[int], targets: frozenset[int], deltas: Sequence[int]) -> set[int]:
    """The cells from which a single box could be pushed to a target, found by pulling it from the targets."""
    useful: set[int] = set()
    frontier = list(targets)
    while frontier:
        cell = frontier.pop()
        if cell not in useful:
            useful.add(cell)
            frontier += [cell + delta for delta in deltas if {cell + delta, cell + 2 * delta} <= floor]
    return useful
