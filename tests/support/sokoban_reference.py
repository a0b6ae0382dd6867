"""Sokoban's level generation as its description tells it, step by step on arrays, recursive and slow.

The package's generator is held against this one where no golden is at hand: odd rooms, many boxes, short searches.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

import numpy as np

Cell = tuple[int, int]

WALK = ((1, 0), (0, 1), (-1, 0), (0, -1))
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
STAMPS = ("000111000", "010010010", "000110010", "000110110", "000011010")


@dataclass
class Search:
    """The search backwards from the solved level: 0 wall, 1 floor, 2 target, 3 box pulled, 4 box, 5 player."""

    fixed: np.ndarray
    targets: list[Cell]
    state_limit: int
    best_score: int = -1
    best_room: np.ndarray | None = None
    best_places: list[Cell] = field(default_factory=list)
    explored: set[bytes] = field(default_factory=set)

    def displacement(self, places: list[Cell]) -> int:
        return sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in zip(self.targets, places, strict=True))

    def visit(self, room: np.ndarray, places: list[Cell], swaps: int, last: int | None, depth: int) -> None:
        depth -= 1
        if depth <= 0 or len(self.explored) >= self.state_limit or room.tobytes() in self.explored:
            return
        free_targets = int((room == 2).sum())
        score = swaps * self.displacement(places) if free_targets == len(self.targets) else 0
        if score > self.best_score:
            self.best_score, self.best_room, self.best_places = score, room.copy(), list(places)
        self.explored.add(room.tobytes())
        for move in MOVES:
            self.visit(*self.moved(room, places, swaps, last, move), depth)

    def moved(
        self, room: np.ndarray, places: list[Cell], swaps: int, last: int | None, move: Cell
    ) -> tuple[np.ndarray, list[Cell], int, int | None]:
        after, after_places = room.copy(), list(places)
        here = player_of(room)
        ahead, behind = (here[0] + move[0], here[1] + move[1]), (here[0] - move[0], here[1] - move[1])
        if room[ahead] in (1, 2):
            after[here], after[ahead] = self.fixed[here], 5
            if room[behind] in (3, 4):
                after[here], after[behind] = 3, self.fixed[behind]
                owner = places.index(behind)
                after_places[owner] = here
                swaps += owner != last
                last = owner
        return after, after_places, swaps, last


@dataclass
class Model:
    """One seed's two generators."""

    seed: int
    state_limit: int = 300_000

    def __post_init__(self) -> None:
        self.python = random.Random(self.seed)
        self.numpy = np.random.RandomState(self.seed)

    def level(self, height: int, width: int, boxes: int, depth: int) -> tuple | None:
        """(fixed, room, [(target, box)]) with digits as rows of ints; None where the seed gives no level."""
        for _ in range(4):
            room = self.topology(height, width)
            if (room == 1).sum() <= boxes + 1:
                return None
            player = self.free_cell(room)
            room[player] = 5
            targets = []
            for _ in range(boxes):
                targets.append(self.free_cell(room))
                room[targets[-1]] = 2
            fixed = room.copy()
            fixed[player] = 1
            search = Search(fixed, targets, self.state_limit)
            room[room == 2] = 4
            run_deep(search.visit, room, targets, 0, None, depth)
            if search.displacement(search.best_places) > 0:
                found = search.best_room
                found[found == 3] = 4
                self.stroll(found, fixed, search.displacement(search.best_places))
                pairs = sorted(zip(targets, search.best_places, strict=True))
                return fixed.tolist(), found.tolist(), pairs
        return None

    def topology(self, height: int, width: int) -> np.ndarray:
        room = np.zeros((height, width), dtype=int)
        direction = WALK[self.python.randrange(4)]
        row, column = self.python.randint(1, height - 1), self.python.randint(1, width - 1)
        for _ in range(int(1.7 * (height + width))):
            if self.python.random() < 0.35:
                direction = WALK[self.python.randrange(4)]
            row = max(min(row + direction[0], height - 2), 1)
            column = max(min(column + direction[1], width - 2), 1)
            stamp = np.array(list(STAMPS[self.python.randrange(5)]), dtype=int).reshape(3, 3)
            room[row - 1 : row + 2, column - 1 : column + 2] |= stamp
        room[[0, -1], :] = 0
        room[:, [0, -1]] = 0
        return room

    def free_cell(self, room: np.ndarray) -> Cell:
        cells = np.argwhere(room == 1)
        return tuple(cells[self.numpy.randint(len(cells))].tolist())

    def stroll(self, room: np.ndarray, fixed: np.ndarray, displacement: int) -> None:
        if self.python.random() > (0.8 if displacement == 1 else 0.5):
            return
        here = player_of(room)
        visited = [here]
        for step in range(3):
            around = [(here[0] + down, here[1] + right) for down, right in MOVES]
            free = [cell for cell in around if room[cell] in (1, 2) and cell not in visited]
            if not free:
                return
            room[here] = fixed[here]
            here = self.python.choice(free)
            room[here] = 5
            visited.append(here)
            if step < 2 and self.python.random() > 0.5:
                return


def player_of(room: np.ndarray) -> Cell:
    return tuple(np.argwhere(room == 5)[0].tolist())


def run_deep(function, *arguments) -> None:
    """Call with room for a recursion of some hundred levels more."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 2000)
    try:
        function(*arguments)
    finally:
        sys.setrecursionlimit(limit)
