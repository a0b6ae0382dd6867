"""The 2x2 cube: reward 1 when every face shows one color, 0 before.

As in RAGEN 2026, a scramble may leave the cube solved, which is checked only after a turn, and the end of the game is
stated in the observation of ``step`` but not in that of ``render``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ragen.env.base import BaseDiscreteActionEnv, StepResult, snapshots
from ragen.env.game import TextGame
from ragen.env.rubikscube.config import RubiksCubeEnvConfig
from ragen.env.rubikscube.cube import COLOURS, LEGACY_TURNS, MOVES, SOLVED, TURNS, is_solved

_CUBE = (
    "=== Rubik's Cube 2x2 State ===\nStep: %d/%d\n\n"
    "Up (U):    [%s, %s]\n [%s, %s]\n"
    "Left (L):  [%s, %s]\n [%s, %s]\n"
    "Front (F): [%s, %s]\n [%s, %s]\n"
    "Right (R): [%s, %s]\n [%s, %s]\n"
    "Back (B):  [%s, %s]\n [%s, %s]\n"
    "Down (D):  [%s, %s]\n [%s, %s]\n\n"
)
_ASK = f"Available Actions:\n{', '.join(MOVES)}\n\nWhat is your next move?"
_SOLVED = "=== Game Over: Cube Solved! ==="
_OUT_OF_STEPS = "=== Game Over: Max steps reached. ==="


class RubiksCubeEnv(TextGame, BaseDiscreteActionEnv):
    """A scrambled 2x2 cube with twelve quarter turns."""

    config_class = RubiksCubeEnvConfig
    cost_hint = "cheap"

    def _begin(self, seed: int, mode: str | None) -> None:
        """Scramble a solved cube."""
        rng = np.random.default_rng(seed)
        turns = self._turns()
        self.stickers, self.steps = SOLVED, 0
        for _ in range(self.config.scramble_depth):
            self.stickers = turns[rng.integers(1, 13) - 1](self.stickers)
        self._look()

    def _play(self, action: int) -> StepResult:
        """Turn a face.

        Args:
            action: 1 to 12, the turns U U' D D' L L' R R' F F' B B'.

        Returns:
            The cube as text with the game's end if it is over, 1.0 if solved else 0.0, whether it is solved or the
            steps are used up, and info.
        """
        self.stickers = self._turns()[action - 1](self.stickers)
        self.steps += 1
        shown = self._look()
        solved = is_solved(self.stickers)
        done = solved or self.steps >= self.config.max_steps
        text = shown + (_SOLVED if solved else _OUT_OF_STEPS) if done else self.observation
        info = {"action_is_effective": True, "action_is_valid": True, "success": solved}
        return text, 1.0 if solved else 0.0, done, info

    def _turns(self) -> tuple[Any, ...]:
        return LEGACY_TURNS if self.config.legacy_b_move else TURNS

    def _look(self) -> str:
        shown = _CUBE % (self.steps, self.config.max_steps, *[COLOURS[sticker] for sticker in self.stickers])
        self.observation = shown + _ASK
        return shown

    save, load = snapshots("seed", "stickers", "steps", "observation")
