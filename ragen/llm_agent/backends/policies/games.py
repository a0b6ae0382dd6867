"""Policies for games and arithmetic: moves from the environments' solvers, and sums of the numbers in a prompt."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import ClassVar

from ragen.env.bandit.config import NAME_PAIRS
from ragen.env.countdown.solver import solve
from ragen.env.frozen_lake import solver as frozen_lake
from ragen.env.frozen_lake.config import SHOWN_TILES, FrozenLakeEnvConfig
from ragen.env.game_2048.board import DOWN, LEFT, RIGHT, UP, Board, move
from ragen.env.rubikscube import solver as cube
from ragen.env.sokoban import solver as sokoban
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.level import TILE_NAMES
from ragen.env.sudoku import solver as sudoku
from ragen.llm_agent.backends.policies.base import Plan, Policy, UnreadableError
from ragen.llm_agent.backends.prompt import Prompt

# Bandit


_ARMS = re.compile(r"named (.+?) and (.+?)\n")
_BETTER = {frozenset({"phoenix", "dragon"}): "dragon", frozenset({"trader", "librarian"}): "librarian"}
_BETTER |= {frozenset({a.lower(), b.lower()}): b.lower() for pairs in NAME_PAIRS.values() for a, b in pairs}


class BanditPolicy(Policy):
    """Pulls the arm whose name promises more."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        arms = read_arms(prompt)
        better = _BETTER.get(frozenset(arm.lower() for arm in arms))
        arm = next((arm for arm in arms if arm.lower() == better), arms[0])
        return Plan(f"{arm} sounds like the one that pays off.", (arm,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        return Plan("Either will do.", (rng.choice(read_arms(prompt)),))


def read_arms(prompt: Prompt) -> tuple[str, ...]:
    """The names of the arms that a state offers.

    Raises:
        UnreadableError: It offers none.
    """
    if (found := _ARMS.search(prompt.state)) is None:
        raise UnreadableError("no arms in the state")
    return found.groups()


# Sokoban and FrozenLake


_MOVES_ON_SLIPPERY_ICE = 2  # after a slip the rest of a longer plan would start from the wrong cell


class GridPolicy(Policy, ABC):
    """Follows the path that a solver finds.

    Class attributes:
        tiles: The meanings of symbols, in the order of the solver's lookup.
        moves: The solver's own names of actions, by number.
    """

    tiles: ClassVar[Sequence[str]]
    moves: ClassVar[Mapping[int, str]]

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        way = self.way(prompt, tile_symbols(prompt.symbols, self.tiles), move_names(prompt.actions, self.moves))
        if not way:
            raise UnreadableError("no grid in the state, or no way to go")
        return Plan(f"{len(way)} moves lead there, first {way[0]}.", tuple(way[: prompt.limit]))

    @abstractmethod
    def way(self, prompt: Prompt, symbols: Mapping[int, str] | None, names: Mapping[int, str]) -> list[str] | None:
        """The names of the next moves; empty or None if there is no path."""


class SokobanPolicy(GridPolicy):
    """Pushes the boxes with the fewest moves."""

    tiles = TILE_NAMES
    moves = SokobanEnvConfig().action_lookup

    def way(self, prompt: Prompt, symbols: Mapping[int, str] | None, names: Mapping[int, str]) -> list[str] | None:
        """See :meth:`GridPolicy.way`."""
        return sokoban.solve(prompt.state, symbols, names)


class FrozenLakePolicy(GridPolicy):
    """Avoids the holes, at a distance if the instructions say that the ice is slippery."""

    tiles = SHOWN_TILES
    moves = FrozenLakeEnvConfig().action_lookup

    def way(self, prompt: Prompt, symbols: Mapping[int, str] | None, names: Mapping[int, str]) -> list[str] | None:
        """See :meth:`GridPolicy.way`."""
        slippery = "slippery" in prompt.instructions
        way = frozen_lake.solve(prompt.state, symbols, names, slippery)
        return way[:_MOVES_ON_SLIPPERY_ICE] if way and slippery else way


def tile_symbols(symbols: Mapping[str, str], tiles: Sequence[str]) -> dict[int, str] | None:
    """The symbol of each tile, by its index among the meanings; None if the prompt does not explain all of them."""
    by_meaning = {meaning: symbol for symbol, meaning in symbols.items()}
    if any(tile not in by_meaning for tile in tiles):
        return None
    return {number: by_meaning[tile] for number, tile in enumerate(tiles)}


def move_names(actions: Sequence[str], moves: Mapping[int, str]) -> Mapping[int, str]:
    """The names of the moves in the prompt: the usual ones, or other ones in the same order."""
    if len(actions) != len(moves) or {name.lower() for name in actions} == {name.lower() for name in moves.values()}:
        return moves
    return dict(zip(moves, actions, strict=True))


# 2048


_ROW = re.compile(r"^Row \d+: \[([\d, ]+)\]$", re.M)
_NAMES = {UP: "Up", RIGHT: "Right", DOWN: "Down", LEFT: "Left"}
_DEPTH = 3
_MOVES_PER_REPLY = 3  # new tiles appear meanwhile, so a longer plan would be about another board


class TilePolicy(Policy):
    """Plans a few moves as if no new tile appeared."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        board = read_board(prompt.state)
        names = []
        for _ in range(min(_MOVES_PER_REPLY, prompt.limit)):
            direction = best_move(board)
            if direction is None:
                break
            board, _gained = move(board, direction)
            names.append(_NAMES[direction])
        if not names:
            raise UnreadableError("no tile can move")
        return Plan(f"{names[0]} merges well and keeps large tiles at the edge.", tuple(names))


def read_board(state: str) -> Board:
    """The board that a state shows.

    Raises:
        UnreadableError: It shows none.
    """
    board = tuple(tuple(int(tile) for tile in row.split(",")) for row in _ROW.findall(state))
    if not board or any(len(row) != len(board) for row in board):
        raise UnreadableError("no 2048 board in the state")
    return board


def best_move(board: Board) -> int | None:
    """The direction whose best continuation is worth most; None if nothing can move."""
    worth = {direction: _worth(board, direction, _DEPTH) for direction in (LEFT, DOWN, UP, RIGHT)}
    open_ones = {direction: value for direction, value in worth.items() if value is not None}
    return max(open_ones, key=open_ones.__getitem__) if open_ones else None


def _worth(board: Board, direction: int, depth: int) -> float | None:
    moved, gained = move(board, direction)
    if moved == board:
        return None
    if depth == 1:
        return gained + _order(moved)
    later = [value for after in _NAMES if (value := _worth(moved, after, depth - 1)) is not None]
    return gained + max(later, default=-1e9)


def _order(board: Board) -> float:
    """A score for empty cells, and for tiles sorted towards one side."""
    empty = sum(not tile for row in board for tile in row)
    rises = sum(a >= b for line in (*board, *zip(*board, strict=True)) for a, b in pairwise(line))
    return 4.0 * empty + 2.0 * rises


# Sudoku and the cube


_MAX_TURNS = 6


class SudokuPolicy(Policy):
    """Places the numbers of a solution, row by row."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        moves = sudoku.solve(prompt.state)
        if not moves:
            raise UnreadableError("no board with a solution in the state")
        row, column, number = moves[0]
        thought = f"In row {row}, column {column} only {number} goes with the rest."
        return Plan(thought, tuple(_placement(*move) for move in moves[: prompt.limit]))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        board = sudoku.read_board(prompt.state)
        if board is None:
            raise UnreadableError("no board in the state")
        size = round(len(board[0]) ** 0.5)
        numbers = (rng.randint(1, size) for _ in range(3))
        return Plan("I try a number.", (_placement(*numbers),))


def _placement(row: int, column: int, number: int) -> str:
    return f"place {number} at row {row} col {column}"


class CubePolicy(Policy):
    """Solves a cube that is a few turns from solved, by the shortest sequence."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        turns = cube.solve(prompt.state, _MAX_TURNS)
        if not turns:
            raise UnreadableError("no cube in the state, or none that a few turns solve")
        return Plan(f"{len(turns)} turns bring the colours together.", tuple(turns[: prompt.limit]))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        if prompt.actions:
            return super().guess(prompt, rng)
        return Plan("I turn a face.", (rng.choice(cube.MOVES),))


# Countdown and word problems


_PUZZLE = re.compile(r"Target: (-?\d+), nums: \[([\d, ]+)\]")
_NUMBER = re.compile(r"\d+")


class CountdownPolicy(Policy):
    """Searches for an expression with the target's value."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        target, numbers = read_puzzle(prompt.state)
        expression = solve(numbers, target)
        if expression is None:
            return self.guess(prompt, rng)
        return Plan(f"{expression} is {target}.", (expression,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        _, numbers = read_puzzle(prompt.state)
        rng.shuffle(numbers)
        expression = str(numbers[0]) + "".join(f" {rng.choice('+-*')} {number}" for number in numbers[1:])
        return Plan("This may come close.", (expression,))


def read_puzzle(state: str) -> tuple[int, list[int]]:
    """The target and the numbers.

    Raises:
        UnreadableError: The state shows none.
    """
    if (found := _PUZZLE.search(state)) is None:
        raise UnreadableError("no puzzle in the state")
    return int(found[1]), [int(number) for number in found[2].split(",")]


_FORMULAS: tuple[tuple[str, Callable[..., float]], ...] = (
    ("value of x", lambda factor, shift, right: (right - shift) / factor),
    ("larger number", lambda total, difference: (total + difference) / 2),
    ("sequence begins", lambda first, gap, place: first + gap * (place - 1)),
    ("average", lambda *scores: sum(scores) / len(scores)),
    ("percent", lambda price, percent: price * (100 - percent) / 100),
    ("times as old", lambda age, factor, years: age * factor + years),
    ("left over", lambda things, box: things % box),
    ("litres a minute", lambda fill, leak, minutes: (fill - leak) * minutes),
    ("hours and", lambda hours, minutes, others: 60 * hours + minutes + others),
    ("half of the seats", lambda rows, seats: rows * seats / 2),
    ("a quarter of the seats", lambda rows, seats: rows * seats * 3 / 4),
    ("fence", lambda length, width: 2 * (length + width)),
    ("ticket", lambda adult, child, adults, children: adult * adults + child * children),
    ("shares", lambda things, kept, friends: (things - kept) / friends),
    ("saves", lambda start, weekly, weeks: start + weekly * weeks),
    ("shelves", lambda shelves, books, lent: shelves * books - lent),
    ("hours at", lambda hours, speed, more: hours * speed + more),
)
"""Keywords of a problem, and the formula of its answer from its numbers, in the order of the text."""


class MathPolicy(Policy):
    """Recognizes the kind of a word problem by keywords, and computes the answer; guesses on other problems."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        answer = word_problem_answer(prompt.state)
        return self.guess(prompt, rng) if answer is None else Plan(f"That makes {answer}.", (answer,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        numbers = [int(number) for number in _NUMBER.findall(prompt.state)] or [rng.randint(0, 100)]
        answer = rng.choice((sum(numbers), max(numbers) - min(numbers), numbers[0] * numbers[-1]))
        return Plan("I would say so.", (str(answer),))


def word_problem_answer(question: str) -> str | None:
    """The answer to a problem of a known kind; None to others."""
    numbers = [int(number) for number in _NUMBER.findall(question)]
    for words, formula in _FORMULAS:
        if words in question:
            try:
                value = formula(*numbers)
            except (TypeError, ZeroDivisionError):  # known keywords, but a different count of numbers
                continue
            return str(int(value)) if value == int(value) else f"{value:g}"
    return None
