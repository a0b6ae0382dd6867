"""Searches for the initial state of a level by playing backwards from the solved level, pulling boxes off targets.

The search is depth-first and keeps the first state with the highest score, so the order of visits determines the level.
It visits the same states as RAGEN's (gym_sokoban's) search, without recursion:

* A state is skipped if no depth remains, or if the same *grid* was explored before, at any depth and on any path.
* A grid distinguishes boxes that were pulled from those that never were, but not one box from another.
* The score is ``swaps * displacement`` if all targets are free of boxes and player, else 0. A swap is a pull of a
  different box than the previous pull; the displacement is the sum of the distances (rows plus columns) from boxes to
  their targets.
* Moves are tried in the order up, down, left, right. Walking away from a box always pulls it.

The stack has the pending calls of the recursion, so popping visits states in the recursion's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

STATE_LIMIT = 300_000


class Arrangement(NamedTuple):
    """The positions of boxes, and how they were reached; sets of cells are bit masks over the floor's cells.

    Attributes:
        boxes: All boxes.
        unpulled: The boxes that were never pulled and are therefore on their targets.
        places: The cell of each target's box.
        swaps: Number of pulls of a different box than the previous pull.
        last: The target whose box was pulled last; -1 if none was.
        score: The score of a state with these boxes if the player is not on a target.
        explored: A list of one bit mask: the cells where the player was with boxes on the same cells. Arrangements with
            the same grid share it.
    """

    boxes: int
    unpulled: int
    places: tuple[int, ...]
    swaps: int
    last: int
    score: int
    explored: list[int]


@dataclass(frozen=True, slots=True)
class Start:
    """The best start found.

    Attributes:
        player: The player's cell.
        boxes: The cell of each target's box.
        displacement: Rows plus columns between targets and boxes; 0 if no start was found.
        explored: Number of states explored.
    """

    player: int
    boxes: tuple[int, ...]
    displacement: int
    explored: int


class _Floor:
    """The floor's cells, numbered from 0 row by row, with tables for the search."""

    def __init__(self, cells: Sequence[int], stride: int, targets: Sequence[int]) -> None:
        self.cells = cells
        self.index = {cell: number for number, cell in enumerate(cells)}
        self.stride = stride
        self.targets = targets
        self.target_mask = sum(1 << self.index[target] for target in targets)
        self.exits = [self._exits(cell) for cell in cells]

    def _exits(self, cell: int) -> list[tuple[int, int, int]]:
        """Right, left, down, up: the next cell, its bit, and the bit of the cell that a box would be pulled from."""
        find = self.index.get
        exits = []
        for delta in (1, -1, self.stride, -self.stride):
            ahead = find(cell + delta)
            if ahead is not None:
                behind = find(cell - delta)
                exits.append((ahead, 1 << ahead, 0 if behind is None else 1 << behind))
        return exits

    def displacement(self, places: Sequence[int]) -> int:
        total = 0
        for target, place in zip(self.targets, places, strict=True):
            row, column = divmod(target, self.stride)
            box_row, box_column = divmod(self.cells[place], self.stride)
            total += abs(row - box_row) + abs(column - box_column)
        return total


def find_start(cells: Sequence[int], stride: int, player: int, targets: Sequence[int], depth: int) -> Start:
    """Search for the initial state of a level.

    Args:
        cells: The cells that are not walls, in ascending order.
        stride: The offset from a cell to the one below it.
        player: The player's cell in the solved level.
        targets: The targets' cells, each with a box on it.
        depth: RAGEN's ``search_depth``; paths of at most ``depth - 2`` moves are tried.

    Returns:
        The best start.
    """
    floor = _Floor(cells, stride, targets)
    target_mask, exits, index = floor.target_mask, floor.exits, floor.index
    solved = Arrangement(target_mask, target_mask, tuple(index[t] for t in targets), 0, -1, 0, [0])
    grids = {(target_mask, target_mask): solved.explored}
    best_score, best, best_player = 0, solved, index[player]
    stack = [(best_player, solved, depth - 1)]
    explored_states = 0
    while stack:
        here, arrangement, depth_left = stack.pop()
        explored = arrangement.explored
        bit = 1 << here
        if explored[0] & bit or depth_left <= 0:
            continue
        if explored_states == STATE_LIMIT:
            break
        explored_states += 1
        explored[0] |= bit
        if arrangement.score > best_score and not target_mask & bit:
            best_score, best, best_player = arrangement.score, arrangement, here
        boxes = arrangement.boxes
        for ahead, ahead_bit, behind_bit in exits[here]:
            if boxes & ahead_bit:
                continue
            if boxes & behind_bit:
                grid = boxes ^ behind_bit | bit, arrangement.unpulled & ~behind_bit
                pulled_explored = grids.setdefault(grid, [0])
                if not pulled_explored[0] & ahead_bit:
                    pulled = _pull(floor, arrangement, grid, here, pulled_explored)
                    stack.append((ahead, pulled, depth_left - 1))
            elif not explored[0] & ahead_bit:
                stack.append((ahead, arrangement, depth_left - 1))
    places = best.places
    return Start(cells[best_player], tuple(cells[p] for p in places), floor.displacement(places), explored_states)


def _pull(
    floor: _Floor, arrangement: Arrangement, grid: tuple[int, int], here: int, explored: list[int]
) -> Arrangement:
    """The arrangement after pulling a box to the cell ``here``, with the resulting ``grid`` (boxes, unpulled)."""
    boxes, unpulled = grid
    places, swaps, last = arrangement.places, arrangement.swaps, arrangement.last
    box_from = (arrangement.boxes & ~boxes).bit_length() - 1
    owner = places.index(box_from)
    places = (*places[:owner], here, *places[owner + 1 :])
    if owner != last:
        swaps += 1
    score = 0 if boxes & floor.target_mask else swaps * floor.displacement(places)
    return Arrangement(boxes, unpulled, places, swaps, owner, score, explored)
