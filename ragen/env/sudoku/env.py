"""Sudoku, one placement a step.

A placement that breaks no rule earns 1 if it agrees with the grid the puzzle was made from and 0.5 if not (the puzzle
may have other solutions), and filling the grid 10 more; anything else costs 0.1 and a step. As in RAGEN 2026, only a
placement that is accepted can end the episode, also when the steps are long used up.
"""

from __future__ import annotations

from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, snapshots
from ragen.env.checks import check_was_reset, checked_seed
from ragen.env.sudoku.config import BLANK_SHARE, SudokuEnvConfig
from ragen.env.sudoku.grid import Grid, make_puzzle
from ragen.env.sudoku.reply import Placement, read_placement
from ragen.env.sudoku.view import HINT_LIMIT, BoardView, hints, progress, titled
from ragen.env.text import TextObservation

_ECHO_LIMIT = 1000  # characters of an unreadable reply that the observation repeats
_FORMAT_HELP = "Expected format: 'place 5 at row 2 col 3' or '2,3,5'"
_REFUSED_REWARD = -0.1
_SOLVED_REWARD = 10.0

Step = tuple[str, float, bool, dict[str, Any]]


class SudokuEnv(TextObservation, BaseLanguageBasedEnv):
    """A puzzle to fill by replies such as ``place 5 at row 2 col 3`` or ``2,3,5`` (row, column, number)."""

    config_class = SudokuEnvConfig
    uses_global_rng = False
    cost_hint = "cheap"
    action_hint = "a placement, such as: place 5 at row 2 col 3"

    def __init__(self, config: SudokuEnvConfig | None = None) -> None:
        """Take a configuration; the puzzle is made by ``reset``."""
        self.config = config or SudokuEnvConfig()
        self.given: list[int] = []
        self.solution: list[int] = []
        self.steps = 0
        self._given_count = 0
        self._grid = Grid(self.config.grid_size, [])
        self._board: Any = None  # a BoardView once reset
        self._feedback = ""

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Make a new puzzle; see :meth:`BaseEnv.reset`."""
        config = self.config
        share = BLANK_SHARE[config.difficulty]
        self.given, self.solution = make_puzzle(config.grid_size, share, checked_seed("sudoku", seed))
        self._grid = Grid(config.grid_size, self.given.copy())
        self._given_count = len(self.given) - self._grid.blanks
        self._board = BoardView(self.given, config.grid_size, framed=config.render_format != "simple")
        self._feedback = ""
        self.steps = 0
        return self._look()

    def step(self, action: str) -> Step:
        """Try to place the number that a text asks for.

        Args:
            action: Any text; see :mod:`ragen.env.sudoku.reply` for what is understood.

        Returns:
            The puzzle as text, the reward, whether the episode is over, and info; ``error`` says why a placement was
            refused.

        Raises:
            StateError: The environment was never reset.
        """
        check_was_reset("sudoku", self._board is not None)
        self.steps += 1
        placement = read_placement(action)
        error = self._format_error(action, placement)
        if placement is None or error:
            return self._refuse(f"❌ Invalid action format: {error}", error)
        index = (placement.row - 1) * self.config.grid_size + placement.column - 1
        cell = f"({placement.row},{placement.column})"
        if self.given[index]:
            return self._refuse(f"❌ Cannot modify initial cell at {cell}", "Cannot modify initial cells")
        where = ", ".join(self._grid.conflicts(index, placement.value))
        if where:
            return self._refuse_conflict(index, placement.value, cell, where)
        return self._accept(index, placement.value, cell)

    def _format_error(self, action: str, placement: Placement | None) -> str:
        if placement is None:
            echo = action if len(action) <= _ECHO_LIMIT else f"{action[:_ECHO_LIMIT]}..."
            return f"Could not parse action: '{echo}'. {_FORMAT_HELP}"
        size = self.config.grid_size
        named = (("Row", placement.row), ("Column", placement.column), ("Number", placement.value))
        wrong = [f"{name} {number} is out of range (1-{size})" for name, number in named if not 1 <= number <= size]
        return wrong[0] if wrong else ""

    def _refuse_conflict(self, index: int, value: int, cell: str, where: str) -> Step:
        fitting = list(self._grid.valid_numbers(index))
        feedback = f"❌ Invalid placement: {value} conflicts with {where}"
        if fitting:
            feedback += f"\n   Valid numbers for {cell}: {fitting}"
        return self._refuse(feedback, f"Number {value} conflicts with {where}", valid_numbers=fitting)

    def _refuse(self, feedback: str, error: str, **more: Any) -> Step:
        self._feedback = feedback
        info = {"action_is_effective": False, "action_is_valid": False, "success": False, "error": error, **more}
        return self._look(), _REFUSED_REWARD, False, info

    def _accept(self, index: int, value: int, cell: str) -> Step:
        self._grid.place(index, value)
        self._board.place(index, value)
        expected = value == self.solution[index]
        solved = self._grid.blanks == 0  # no conflict ever gets onto the board
        self._feedback = f"✓ Correct! Placed {value} at {cell}"
        if not expected:
            self._feedback = f"⚠ Placed {value} at {cell} - Valid but not optimal"
        if solved:
            self._feedback += "\n🎉 Congratulations! Puzzle solved!"
        reward = (1.0 if expected else 0.5) + (_SOLVED_REWARD if solved else 0.0)
        done = solved or self.steps >= self.config.max_steps
        return self._look(), reward, done, self._accepted_info(expected, solved)

    def _accepted_info(self, expected: bool, solved: bool) -> dict[str, Any]:
        return {
            "action_is_effective": True,
            "action_is_valid": True,
            "success": solved,
            "correct_placement": expected,
            "steps_remaining": self.config.max_steps - self.steps,
            "cells_filled": len(self.given) - self._grid.blanks,
            "cells_remaining": self._grid.blanks,
        }

    def _look(self) -> str:
        config = self.config
        board = self._board.text()
        if config.render_format == "simple":
            self.observation = board
            return board
        sections = [titled(board)]
        if self._feedback:
            sections.append(self._feedback)
        if config.render_format == "with_feedback":
            if config.show_valid_numbers and 0 < self._grid.blanks <= HINT_LIMIT:
                sections.append(hints(self._grid))
            sections.append(progress(self._grid, self._given_count, self.steps, config.max_steps))
        self.observation = "\n\n".join(sections)
        return self.observation

    save, load = snapshots("given", "solution", "steps", "observation", "_given_count", "_grid", "_board", "_feedback")
