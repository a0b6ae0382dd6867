"""Configuration of Sudoku: size, difficulty, observations, and number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ragen.env.checks import check

BLANK_SHARE = {"easy": 0.4, "medium": 0.5, "hard": 0.6}
"""The fraction of cells that each difficulty leaves blank."""


@dataclass
class SudokuEnvConfig:
    """Configuration of :class:`~ragen.env.sudoku.env.SudokuEnv`.

    Attributes:
        grid_size: Rows, columns and numbers: 4 or 9.
        difficulty: ``"easy"``, ``"medium"`` or ``"hard"``: 40, 50 or 60 % of the cells are blank.
        render_format: ``"simple"`` shows only the numbers; ``"detailed"`` distinguishes given from placed numbers and
            reports the result of the last action; ``"with_feedback"`` adds hints and progress.
        show_conflicts: Accepted for compatibility with RAGEN. It has no effect, since conflicting placements are
            refused.
        show_valid_numbers: Whether ``"with_feedback"`` lists valid numbers for blank cells once at most ten are left.
        max_steps: The number of steps after which an accepted placement ends the episode.
        render_mode: ``"text"``.
    """

    grid_size: Literal[4, 9] = 9
    difficulty: Literal["easy", "medium", "hard"] = "easy"
    render_format: Literal["simple", "detailed", "with_feedback"] = "with_feedback"
    show_conflicts: bool = True
    show_valid_numbers: bool = True
    max_steps: int = 81
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid.
        """
        check(self)
