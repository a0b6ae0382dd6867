"""Generates levels from seeds; for every seed with which RAGEN finds a level, it is the same level.

Two generators are seeded, Python's ``random.Random`` and numpy's legacy ``RandomState``. A random walk carves the
floor, numpy's generator places player and targets, :mod:`~ragen.env.sokoban.reverse_search` pulls the boxes away, and
finally the player may take a few steps. Up to four rooms are tried per seed.

If all four fail, RAGEN continues with a seed from Python's string hash, which differs between processes. Here the next
seed is computed with SHA-256, so a seed's level is the same everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from random import Random
from typing import NamedTuple

from numpy.random import MT19937, RandomState

from ragen.env.sokoban.level import BOX, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, Level, RoomShape, room_shape
from ragen.env.sokoban.reverse_search import Start, find_start
from ragen.errors import LevelError

ROOMS_PER_SEED = 4
TURN_PROBABILITY = 0.35
SEED_LIMIT = 1_000  # consecutive seeds without a level before reset fails
STATE_BUDGET = 20_000_000  # states explored before reset fails: about twenty seconds

Bits = Callable[[int], int]


class LevelSpec(NamedTuple):
    """The parameters of a level, named as in the configuration."""

    height: int
    width: int
    num_boxes: int
    search_depth: int


class _Generators(threading.local):
    """The two generators, one pair per thread; they are reused because creating them takes longer than seeding."""

    def __init__(self) -> None:
        self.python = Random(0)
        self.numpy = RandomState(MT19937(0))

    def seeded(self, seed: int) -> tuple[Random, RandomState]:
        self.python.seed(seed)
        self.numpy.seed(seed)
        return self.python, self.numpy


_generators = _Generators()


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
    python, numpy = _generators.seeded(seed)
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
