"""2048: four moves, a new tile after each change, until no move is possible.

As in RAGEN, reaching 2048 neither ends the game nor counts as success unless the tile is there when the board is stuck,
and with ``use_log_reward`` a move without effect costs 0.1 only in ``info["raw_reward"]``. Unlike there, ``reset``
returns the observation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ragen.env.base import BaseDiscreteActionEnv, StepResult, snapshots
from ragen.env.game import TextGame
from ragen.env.game_2048.config import Game2048EnvConfig

GOAL = 2048
_STUCK_PENALTY = -0.1
Line = tuple[int, ...]
Board = tuple[Line, ...]
"""Rows of tile values, 0 where empty."""

UP, RIGHT, DOWN, LEFT = range(4)
_LABELS = ("0(Up)", "1(Right)", "2(Down)", "3(Left)")


class Game2048Env(TextGame, BaseDiscreteActionEnv):
    """The sliding-tile game; see the module for its rewards."""

    config_class = Game2048EnvConfig
    cost_hint = "cheap"

    _board: Board = ()

    @property
    def grid(self) -> list[list[int]]:
        """The board as rows of tile values, 0 where empty."""
        return [list(row) for row in self._board]

    def _begin(self, seed: int, mode: str | None) -> None:
        """Put two tiles on an empty board."""
        self._rng = np.random.default_rng(seed)
        self.score = 0
        self._board = ((0,) * self.config.size,) * self.config.size
        self._add_tile()
        self._add_tile()
        self._look()

    def _play(self, action: int) -> StepResult:
        """Make a move.

        Args:
            action: 0 up, 1 right, 2 down, 3 left.

        Returns:
            The board as text, the reward, whether the board is stuck, and info: ``grid``, ``action_mask`` (which moves
            change anything), ``score``, ``raw_reward`` (the merged tiles, or -0.1), and on a stuck board ``max_tile``.
        """
        moved = self._open[action]
        raw = _STUCK_PENALTY
        if moved:
            self._board, gained = move(self._board, action)
            raw = float(gained)
            self.score += gained
            self._add_tile()
            self._look()
        done = not any(self._open)
        scaled = 0.1 * math.log2(raw + 1) if raw > 0 else 0.0
        reward = scaled if self.config.use_log_reward else raw
        return self.observation, reward, done, self._info(moved, done, raw)

    def _add_tile(self) -> None:
        cells = [(r, c) for r, row in enumerate(self._board) for c, tile in enumerate(row) if not tile]
        row, column = cells[self._rng.integers(0, len(cells))]
        board = self.grid
        board[row][column] = 2 if self._rng.random() < self.config.two_prob else 4
        self._board = tuple(map(tuple, board))

    def _info(self, moved: bool, done: bool, raw: float) -> dict[str, Any]:
        info: dict[str, Any] = {"action_is_effective": moved, "action_is_valid": moved, "success": False}
        if done:
            info["max_tile"] = max(map(max, self._board))
            info["success"] = info["max_tile"] >= GOAL
        info["grid"] = self.grid
        info["action_mask"] = list(self._open)
        info["score"] = self.score
        info["raw_reward"] = raw
        return info

    def _look(self) -> None:
        self._open = open_moves(self._board)
        rows = "\n".join(f"Row {number}: {list(row)}" for number, row in enumerate(self._board, 1))
        moves = ", ".join(label for label, is_open in zip(_LABELS, self._open, strict=True) if is_open) or "None"
        self.observation = (
            f"Current 2048 Grid:\n{rows}\n\nValid Actions: {moves}.\nGoal: Merge same numbers to reach {GOAL}.\n"
            f"Current Score: {self.score}\nWhat is your next move?"
        )

    save, load = snapshots("seed", "_rng", "score", "_board", "_open", "observation")


@lru_cache(maxsize=65536)
def slide(line: Line) -> tuple[Line, int]:
    """Slide a line towards its start; equal neighbors merge, each tile once. Cached, since lines repeat often.

    Returns:
        The new line, and the sum of the merged tiles.
    """
    merged: list[int] = []
    gained = waiting = 0
    for tile in filter(None, line):
        if tile == waiting:
            merged[-1] = 2 * tile
            gained += 2 * tile
            waiting = 0
        else:
            merged.append(tile)
            waiting = tile
    return tuple(merged) + (0,) * (len(line) - len(merged)), gained


def move(board: Board, direction: int) -> tuple[Board, int]:
    """The result of a move, before a new tile appears.

    Args:
        board: Square.
        direction: ``UP``, ``RIGHT``, ``DOWN`` or ``LEFT``.

    Returns:
        The new board, equal to the old one if nothing can move this way, and the sum of the merged tiles.
    """
    lines = board if direction in (RIGHT, LEFT) else tuple(zip(*board, strict=True))
    turn = 1 if direction in (UP, LEFT) else -1
    slid = [slide(line[::turn]) for line in lines]
    moved = tuple(line[::turn] for line, _ in slid)
    gained = sum(points for _, points in slid)
    return (moved if direction in (RIGHT, LEFT) else tuple(zip(*moved, strict=True))), gained


def open_moves(board: Board) -> list[bool]:
    """Whether each of ``UP``, ``RIGHT``, ``DOWN`` and ``LEFT`` changes anything."""
    return [move(board, direction)[0] != board for direction in (UP, RIGHT, DOWN, LEFT)]
