"""Generates levels from seeds; for every seed with which RAGEN finds a level, it is the same level.

Two generators are seeded, Python's ``random.Random`` and numpy's legacy ``RandomState``. A random walk carves the
floor, numpy's generator places player and targets, a search pulls the boxes away, and
finally the player may take a few steps. Up to four rooms are tried per seed.

If all four fail, RAGEN continues with a seed from Python's string hash, which differs between processes. Here the next
seed is computed with SHA-256, so a seed's level is the same everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from random import Random
from typing import NamedTuple

from numpy.random import RandomState

from ragen.env.sokoban.level import BOX, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, Level, RoomShape, room_shape
from ragen.errors import LevelError

ROOMS_PER_SEED = 4
TURN_PROBABILITY = 0.35
SEED_LIMIT = 1_000  # consecutive seeds without a level before reset fails
STATE_LIMIT = 300_000  # states explored for one room
STATE_BUDGET = 20_000_000  # states explored before reset fails: about twenty seconds

Bits = Callable[[int], int]


class LevelSpec(NamedTuple):
    """The parameters of a level, named as in the configuration."""

    height: int
    width: int
    num_boxes: int
    search_depth: int


_generators = threading.local()  # reused by each thread, because creating them takes longer than seeding


def _seeded(seed: int) -> tuple[Random, RandomState]:
    if not hasattr(_generators, "pair"):
        _generators.pair = Random(0), RandomState(0)
    for generator in _generators.pair:
        generator.seed(seed)
    return _generators.pair


@lru_cache(maxsize=4096)
def generate_level(spec: LevelSpec, seed: int) -> Level:
    """The level of a seed; the last 4,096 are cached.

    Args:
        spec: The parameters of the level.
        seed: 0 to 2**32 - 1.

    Raises:
        LevelError: The search found no level; see ``SEED_LIMIT`` and ``STATE_BUDGET``.
    """
    tried, states = seed, 0
    for _ in range(SEED_LIMIT):
        level, explored = level_of_seed(spec, tried)
        if level is not None:
            return level
        states += explored
        if states > STATE_BUDGET:
            break
        tried = next_seed(tried)
    raise LevelError(
        f"sokoban: no level found for seed {seed} with dim_room=({spec.height}, {spec.width}), "
        f"num_boxes={spec.num_boxes}, search_depth={spec.search_depth}, after at most {SEED_LIMIT} derived seeds "
        f"and {states} states. Use a larger room, fewer boxes, or another search_depth."
    )


def next_seed(seed: int) -> int:
    """The seed to try after one without a level; the same in every process."""
    return int.from_bytes(sha256(str(seed).encode()).digest()[:4], "big")


def level_of_seed(spec: LevelSpec, seed: int) -> tuple[Level | None, int]:
    """The level of exactly this seed, or None if its rooms fail, and the number of states explored."""
    shape = room_shape(spec.height, spec.width)
    python, numpy = _seeded(seed)
    states = 0
    for _ in range(ROOMS_PER_SEED):
        floor = carve_floor(python, shape)
        if len(floor) <= spec.num_boxes + 1:
            break
        player, targets = _place(numpy, floor, spec.num_boxes)
        start = find_start(floor, shape.stride, player, targets, spec.search_depth)
        states += start.explored
        if start.displacement > 0:
            return _level(python, shape, floor, targets, start), states
    return None, states


def carve_floor(rng: Random, shape: RoomShape) -> list[int]:
    """The cells that a random walk, which stamps shapes, turns into floor, in ascending order."""
    bits, random = rng.getrandbits, rng.random
    walk = shape.walks[_below(bits, 4)]
    cell = (1 + _below(bits, shape.height - 1)) * shape.stride
    cell += 1 + _below(bits, shape.width - 1)
    floor = bytearray(shape.height * shape.stride)
    stamps = shape.stamps
    for _ in range(int(1.7 * (shape.height + shape.width))):
        if random() < TURN_PROBABILITY:
            walk = shape.walks[_below(bits, 4)]
        cell = walk[cell]
        for offset in stamps[_below(bits, 5)]:
            floor[cell + offset] = True
    return [cell for cell in shape.interior if floor[cell]]


def _below(bits: Bits, limit: int) -> int:
    """A random number below a limit, with the same draws as ``random.Random.randrange``."""
    size = limit.bit_length()
    number = bits(size)
    while number >= limit:
        number = bits(size)
    return number


def _place(rng: RandomState, floor: list[int], num_boxes: int) -> tuple[int, list[int]]:
    free = floor.copy()
    player, *targets = [free.pop(rng.randint(len(free))) for _ in range(num_boxes + 1)]
    return player, targets


def _level(rng: Random, shape: RoomShape, floor: list[int], targets: list[int], start: Start) -> Level:
    fixed = shape.empty()
    for cell in floor:
        fixed[cell] = FLOOR
    for cell in targets:
        fixed[cell] = TARGET
    room = fixed.copy()
    for cell in start.boxes:
        room[cell] = BOX
    player = _stroll(rng, shape, room, start)
    room[player] = PLAYER_ON_TARGET if fixed[player] == TARGET else PLAYER
    return Level(bytes(fixed), bytes(room), player)


def _stroll(rng: Random, shape: RoomShape, room: bytearray, start: Start) -> int:
    """Let the player walk up to three steps, so that it does not always start where it left a box."""
    player = start.player
    if rng.random() > (0.8 if start.displacement == 1 else 0.5):
        return player
    visited = {player}
    for step in range(3):
        around = [player + delta for delta in shape.deltas]
        free = [cell for cell in around if room[cell] in (FLOOR, TARGET) and cell not in visited]
        if not free:
            break
        player = free[_below(rng.getrandbits, len(free))]
        visited.add(player)
        if step < 2 and rng.random() > 0.5:
            break
    return player


# The search for the initial state, which plays backwards from the solved level, pulling boxes off targets.
#
# The search is depth-first and keeps the first state with the highest score, so the order of visits determines the
# level. It visits the same states as RAGEN's (gym_sokoban's) search, without recursion:
#
# * A state is skipped if no depth remains, or if the same *grid* was explored before, at any depth and on any path.
# * A grid distinguishes boxes that were pulled from those that never were, but not one box from another.
# * The score is ``swaps * displacement`` if all targets are free of boxes and player, else 0. A swap is a pull of a
#   different box than the previous pull; the displacement is the sum of the distances (rows plus columns) from boxes to
#   their targets.
# * Moves are tried in the order up, down, left, right. Walking away from a box always pulls it.
#
# The stack has the pending calls of the recursion, so popping visits states in the recursion's order.


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


class Start(NamedTuple):
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
