"""Countdown: one answer, an arithmetic expression that uses each number once and has the target as its value.

The rules are RAGEN's, but only an expression of the given numbers, ``+ - * /``, parentheses and signs is right, and its
value is exact (see :mod:`ragen.env.countdown.arithmetic`). RAGEN passes any text to ``eval``, whose comments, powers,
decimals and roundings make wrong answers right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.checks import integer
from ragen.env.countdown.arithmetic import MAX_LENGTH, ExpressionError, evaluate
from ragen.env.countdown.config import CountdownEnvConfig
from ragen.env.game import TextGame
from ragen.env.rows import RowSource, is_of, load_rows

_SIGNED_NUMBERS = 4  # RAGEN's filter looks at four numbers; a fifth stays in the puzzle, and counts in the answer
_NUMBER = re.compile(r"\d{1,4000}")  # of any script, and of no more digits than Python converts


class Puzzle(NamedTuple):
    """Numbers to use once each, and the target to reach."""

    numbers: tuple[int, ...]
    target: int


class CountdownEnv(TextGame, BaseLanguageBasedEnv):
    """Reach a target number with each given number once.

    Attributes:
        puzzle: The :class:`Puzzle` of this episode.
        index: Its index among the puzzles.
    """

    config_class = CountdownEnvConfig
    seed_limit = None
    cost_hint = "cheap"
    action_hint = "an expression with each number once, such as: (3 + 4) * 5"

    def __init__(self, config: CountdownEnvConfig | None = None) -> None:
        """Take a configuration and read its puzzles, unless this process has read them.

        Raises:
            ConfigError: The puzzles cannot be read, or none is left.
        """
        super().__init__(config)
        self._source = self.config.source()
        self._puzzles()

    def _puzzles(self, mode: str | None = None) -> tuple[Puzzle, ...]:
        part = None if self.config.train_path else mode or "train"
        # Not kept here, since a copy must be small when pickled.
        return load_puzzles(self._source, self.config.max_instances, part)

    def _begin(self, seed: int, mode: str | None) -> None:
        """Take the puzzle at the index ``seed``, modulo their number.

        Of the package's puzzles, training and validation have their own.
        """
        puzzles = self._puzzles(mode)
        self.index = seed % len(puzzles)
        self.puzzle = puzzles[self.index]
        self.observation = f"Target: {self.puzzle.target}, nums: {list(self.puzzle.numbers)}"

    def _play(self, action: str) -> StepResult:
        """Score an answer; the episode is over after it.

        Args:
            action: Any text.

        Returns:
            The score as text, the score (0 unless each number is used once; else ``format_score``, or ``score`` if the
            value is right), True, and info.
        """
        complete = _uses_each_once(action, self.puzzle.numbers)
        right = complete and _reaches(action, self.puzzle.target)
        reward = self.config.score if right else self.config.format_score if complete else 0
        self.observation = f"Your answer get {reward} points."
        info = {"action_is_effective": reward > 0, "action_is_valid": True, "success": right}
        return self.observation, reward, True, info

    save, load = snapshots("seed", "puzzle", "index", "observation")


def _uses_each_once(text: str, numbers: Iterable[int]) -> bool:
    """Whether the runs of digits in a text are the numbers, each once; signs and points are ignored."""
    return len(text) <= MAX_LENGTH and sorted(map(int, _NUMBER.findall(text))) == sorted(numbers)


def _reaches(text: str, target: int) -> bool:
    try:
        return evaluate(text) == target
    except ExpressionError:
        return False


# Puzzles


@lru_cache(maxsize=8)
def load_puzzles(source: RowSource, max_instances: int, part: str | None = None) -> tuple[Puzzle, ...]:
    """The puzzles of a source that plus and minus can solve, in order; read once per process.

    Args:
        source: Rows with columns ``nums`` and ``target``.
        max_instances: Number of rows to read, from the first.
        part: The mode, where training and validation share no puzzle; None for all.

    Raises:
        ConfigError: The source cannot be read, a row is malformed, or no puzzle is left.
    """
    rows = load_rows(source)
    taken = range(min(max_instances, len(rows)))
    puzzles = (_puzzle(source, index, *rows[index]) for index in taken)
    found = tuple(
        puzzle
        for puzzle in puzzles
        if (part is None or is_of(part, f"{puzzle.target} {sorted(puzzle.numbers)}")) and _is_reachable(*puzzle)
    )
    if not found:
        raise source.error(f"none of the first {len(taken)} rows has a target that plus and minus can reach.")
    return found


def _is_reachable(numbers: Sequence[int], target: int) -> bool:
    """Whether some choice of plus and minus before each of the first four numbers sums to the target."""
    sums = {0}
    for number in numbers[:_SIGNED_NUMBERS]:
        sums = {total + signed for total in sums for signed in (number, -number)}
    return target in sums


def _puzzle(source: RowSource, index: int, numbers: Any, target: Any) -> Puzzle:
    listed = isinstance(numbers, Sequence) and bool(numbers)
    if not listed or not all(map(integer().fits, (*numbers, target))):
        raise source.error(
            f"row {index + 1} has nums={numbers!r}, target={target!r}, expected integers and an integer."
        )
    return Puzzle(tuple(numbers), target)
