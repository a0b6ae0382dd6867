"""Solves a Sokoban level from its text observation.

The search is breadth-first over the positions of player and boxes, so solutions have the fewest moves. Sets of cells
are bit masks; a margin of walls keeps floor cells off the edges of the grid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ragen.env.grid import read_grid
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.level import BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

NODE_LIMIT = 200_000

_State = tuple[int, int]  # the player's cell, the boxes' cells as a mask


@dataclass(frozen=True)
class _Puzzle:
    """A level in the form that the search uses.

    Attributes:
        player: The player's cell.
        boxes: A bit mask of the cells with boxes.
        targets: A bit mask of the cells with targets.
        floor: A bit mask of the cells that are not walls.
        deltas: The offsets to the cell above, below, left and right.
    """

    player: int
    boxes: int
    targets: int
    floor: int
    deltas: tuple[int, int, int, int]


def solve(
    observation: str,
    grid_lookup: Mapping[int, str] | None = None,
    action_lookup: Mapping[int, str] | None = None,
    node_limit: int = NODE_LIMIT,
) -> list[str] | None:
    """The shortest solution of a level.

    Args:
        observation: What the environment rendered, in the format ``grid`` or ``grid_coord``.
        grid_lookup: The symbols of the tiles; None are the configuration's defaults.
        action_lookup: The names of the moves up (1), down (2), left (3) and right (4), likewise.
        node_limit: How many states are looked at before giving up.

    Returns:
        The names of the moves, none if the level is solved; None if there is no solution, none was found within the
        limit, or the observation is not such a grid.
    """
    defaults = SokobanEnvConfig()
    rows = read_grid(observation, grid_lookup or defaults.grid_lookup)
    puzzle = _puzzle(rows) if rows else None
    if puzzle is None:
        return None
    moves = _search(puzzle, node_limit)
    names = action_lookup or defaults.action_lookup
    return None if moves is None else [names[move] for move in moves]


def _puzzle(rows: list[list[int]]) -> _Puzzle | None:
    stride = len(rows[0]) + 2
    cells = {
        (row + 1) * stride + column + 1: tile for row, tiles in enumerate(rows) for column, tile in enumerate(tiles)
    }
    players = [cell for cell, tile in cells.items() if tile in (PLAYER, PLAYER_ON_TARGET)]
    if len(players) != 1:
        return None

    def mask(*wanted: int) -> int:
        return sum(1 << cell for cell, tile in cells.items() if tile in wanted)

    walls = mask(WALL)
    return _Puzzle(
        player=players[0],
        boxes=mask(BOX, BOX_ON_TARGET),
        targets=mask(TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET),
        floor=sum(1 << cell for cell in cells) ^ walls,
        deltas=(-stride, stride, -1, 1),
    )


def _search(puzzle: _Puzzle, node_limit: int) -> list[int] | None:
    """The moves, 1 to 4, of a shortest solution."""
    start = (puzzle.player, puzzle.boxes)
    came_from: dict[_State, tuple[_State, int] | None] = {start: None}
    useful = _useful_cells(puzzle)
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if state[1] & puzzle.targets == state[1]:
            return _path(came_from, state)
        if len(came_from) > node_limit:
            return None
        for move, delta in enumerate(puzzle.deltas, start=1):
            after = _moved(state, delta, puzzle.floor, useful)
            if after is not None and after not in came_from:
                came_from[after] = (state, move)
                queue.append(after)
    return None


def _moved(state: _State, delta: int, floor: int, useful: int) -> _State | None:
    """The state after a move; None if the move is blocked, or leaves a box where it can never reach a target."""
    player, boxes = state
    ahead = player + delta
    if not floor >> ahead & 1:
        return None
    if not boxes >> ahead & 1:
        return ahead, boxes
    behind = ahead + delta
    if boxes >> behind & 1 or not useful >> behind & 1:
        return None
    return ahead, boxes ^ (1 << ahead | 1 << behind)


def _useful_cells(puzzle: _Puzzle) -> int:
    """The cells from which a single box could be pushed to a target, found by pulling it from the targets."""
    useful = 0
    frontier = [cell for cell in range(puzzle.targets.bit_length()) if puzzle.targets >> cell & 1]
    while frontier:
        cell = frontier.pop()
        if useful >> cell & 1:
            continue
        useful |= 1 << cell
        for delta in puzzle.deltas:
            pulled, player = cell - delta, cell - 2 * delta
            if pulled >= 0 and player >= 0 and puzzle.floor >> pulled & 1 and puzzle.floor >> player & 1:
                frontier.append(pulled)
    return useful


def _path(came_from: dict[_State, tuple[_State, int] | None], state: _State) -> list[int]:
    moves = []
    while (step := came_from[state]) is not None:
        state, move = step
        moves.append(move)
    return moves[::-1]
