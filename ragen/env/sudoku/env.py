"""Sudoku with one placement per step.

A placement that breaks no rule has a reward of 1 if it agrees with the grid from which the puzzle was made, and of 0.5
otherwise (the puzzle may have other solutions); filling the grid adds 10. Every other action has a reward of -0.1. As
in RAGEN 2026, only an accepted placement ends the episode, even after ``max_steps``.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.game import TextGame
from ragen.env.sudoku.config import BLANK_SHARE, SudokuEnvConfig
from ragen.env.sudoku.grid import Grid, make_puzzle

_ECHO_LIMIT = 1000  # characters of an unreadable reply that the observation repeats
_FORMAT_HELP = "Expected format: 'place 5 at row 2 col 3' or '2,3,5'"
_REFUSED_REWARD = -0.1
_SOLVED_REWARD = 10.0
_TITLE = f"{'=' * 50}\nSUDOKU PUZZLE\n{'=' * 50}\n"
_LEGEND = "Legend: [N]=initial cell, N=user-placed, *N*=conflict, .=empty"
_HINTS = "💡 VALID NUMBERS FOR EMPTY CELLS:"

READ_LIMIT = 10_000
"""Number of characters of a reply that are parsed, in time that is linear: see the patterns' possessive ``++``."""

HINT_LIMIT = 10
"""Hints are shown if at most this many cells are blank."""

_V, _R, _C = (rf"(?P<{name}>\d++)" for name in ("value", "row", "column"))
_COMMA = r"\s*+,\s*+"

_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"place\s++{_V}\s++at\s++row\s++{_R}\s++col\s++{_C}",
        rf"place\s++{_V}\s++at\s*+\(\s*+{_R}{_COMMA}{_C}\s*+\)",
        rf"place\s++{_V}\s++at\s++{_R}{_COMMA}{_C}",
        rf"(?<!\d){_V}\s++at\s++{_R}{_COMMA}{_C}",
        rf"\(\s*+{_R}{_COMMA}{_C}{_COMMA}{_V}\s*+\)",
        rf"(?<!\d){_R}{_COMMA}{_C}{_COMMA}{_V}",
    )
)


class SudokuEnv(TextGame, BaseLanguageBasedEnv):
    """A puzzle that is filled by actions such as ``place 5 at row 2 col 3`` or ``2,3,5`` (row, column, number)."""

    config_class = SudokuEnvConfig
    cost_hint = "cheap"
    action_hint = "a placement, such as: place 5 at row 2 col 3"

    def _begin(self, seed: int, mode: str | None) -> None:
        """Generate a new puzzle."""
        config = self.config
        share = BLANK_SHARE[config.difficulty]
        self.given, self.solution = make_puzzle(config.grid_size, share, seed)
        self._grid = Grid(config.grid_size, self.given.copy())
        self._feedback = ""
        self.steps = 0
        self._look()

    def _play(self, action: str) -> StepResult:
        """Place the number that a text names, if the rules allow it.

        Args:
            action: Any text; see :func:`read_placement`.

        Returns:
            The puzzle as text, the reward, whether the episode is over, and info; its ``error`` is the reason why a
            placement was refused.
        """
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
            fitting = list(self._grid.valid_numbers(index))
            feedback = f"❌ Invalid placement: {placement.value} conflicts with {where}"
            if fitting:
                feedback += f"\n   Valid numbers for {cell}: {fitting}"
            error = f"Number {placement.value} conflicts with {where}"
            return self._refuse(feedback, error, valid_numbers=fitting)
        return self._accept(index, placement.value, cell)

    def _format_error(self, action: str, placement: Placement | None) -> str:
        if placement is None:
            echo = action if len(action) <= _ECHO_LIMIT else f"{action[:_ECHO_LIMIT]}..."
            return f"Could not parse action: '{echo}'. {_FORMAT_HELP}"
        size = self.config.grid_size
        named = (("Row", placement.row), ("Column", placement.column), ("Number", placement.value))
        wrong = [f"{name} {number} is out of range (1-{size})" for name, number in named if not 1 <= number <= size]
        return wrong[0] if wrong else ""

    def _refuse(self, feedback: str, error: str, **more: Any) -> StepResult:
        self._feedback = feedback
        info = {"action_is_effective": False, "action_is_valid": False, "success": False, "error": error, **more}
        return self._look(), _REFUSED_REWARD, False, info

    def _accept(self, index: int, value: int, cell: str) -> StepResult:
        self._grid.cells[index] = value
        expected = value == self.solution[index]
        solved = self._grid.blanks == 0  # the board never has conflicts
        self._feedback = f"✓ Correct! Placed {value} at {cell}"
        if not expected:
            self._feedback = f"⚠ Placed {value} at {cell} - Valid but not optimal"
        if solved:
            self._feedback += "\n🎉 Congratulations! Puzzle solved!"
        reward = (1.0 if expected else 0.5) + (_SOLVED_REWARD if solved else 0.0)
        done = solved or self.steps >= self.config.max_steps
        info = {
            "action_is_effective": True,
            "action_is_valid": True,
            "success": solved,
            "correct_placement": expected,
            "steps_remaining": self.config.max_steps - self.steps,
            "cells_filled": len(self.given) - self._grid.blanks,
            "cells_remaining": self._grid.blanks,
        }
        return self._look(), reward, done, info

    def _look(self) -> str:
        config = self.config
        shown = board(self._grid.cells, self.given, framed=config.render_format != "simple")
        if config.render_format == "simple":
            self.observation = shown
            return shown
        sections = [f"{_TITLE}{shown}\n\n{_LEGEND}"]
        if self._feedback:
            sections.append(self._feedback)
        if config.render_format == "with_feedback":
            if config.show_valid_numbers and 0 < self._grid.blanks <= HINT_LIMIT:
                sections.append(hints(self._grid))
            sections.append(progress(self._grid, len(self.given) - self.given.count(0), self.steps, config.max_steps))
        self.observation = "\n\n".join(sections)
        return self.observation

    save, load = snapshots("seed", "given", "solution", "steps", "observation", "_grid", "_feedback")


class Placement(NamedTuple):
    """A number and its cell, counted from 1; ranges are not checked."""

    value: int
    row: int
    column: int


def read_placement(text: str) -> Placement | None:
    """The placement in a text.

    Args:
        text: Any text.

    Returns:
        The first match of the first pattern that matches; None if none does.
    """
    text = text[:READ_LIMIT].lower()
    match = next(filter(None, (pattern.search(text) for pattern in _PATTERNS)), None)
    if match is None:
        return None
    try:
        return Placement(*(int(match[name]) for name in Placement._fields))
    except ValueError:  # more digits than Python converts
        return None


def board(cells: list[int], given: list[int], framed: bool) -> str:
    """The board: lines of cells, with rules between boxes.

    Args:
        cells: The numbers, row by row, 0 for blank cells.
        given: Those of the puzzle.
        framed: Whether given numbers are in brackets; if not, all numbers look alike.
    """
    size = math.isqrt(len(cells))
    box = math.isqrt(size)
    shown = [str(number or ".") for number in cells]
    if framed:
        shown = [f"[{text}]" if start else f" {text} " for text, start in zip(shown, given, strict=True)]
    inner, outer = ("", "| ") if framed else (" ", " | ")
    parts = [inner.join(shown[at : at + box]) for at in range(0, len(shown), box)]
    lines = [outer.join(parts[at : at + box]).rstrip() for at in range(0, len(parts), box)]
    rule = f"\n{'-' * (size * (3 if framed else 2) + box - 1)}\n"
    return rule.join("\n".join(lines[at : at + box]) for at in range(0, size, box))


def hints(grid: Grid) -> str:
    """The valid numbers of each blank cell that has any, one line per cell."""
    lines = [_HINTS]
    for index in range(len(grid.cells)):
        fitting = grid.valid_numbers(index)
        if fitting:
            row, column = divmod(index, grid.size)
            lines.append(f"  - ({row + 1},{column + 1}): {list(fitting)}")
    return "\n".join(lines)


def progress(grid: Grid, given: int, steps: int, max_steps: int) -> str:
    """The number of filled cells and of steps."""
    total = len(grid.cells)
    filled = total - grid.blanks
    placed = filled - given
    counts = f"{filled}/{total} cells filled ({given} initial, {placed} placed)"
    return f"Progress: {counts}\nSteps: {steps}/{max_steps}"
