"""Policies for games and arithmetic: moves from the environments' solvers, and sums of the numbers in a prompt."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import ClassVar

from ragen.env.bandit.config import NAME_PAIRS
from ragen.env.countdown.solver import solve
from ragen.env.frozen_lake import solver as frozen_lake
from ragen.env.frozen_lake.config import SHOWN_TILES, FrozenLakeEnvConfig
from ragen.env.search.world import solve as next_lookup
from ragen.env.sokoban import solver as sokoban
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.level import TILE_NAMES
from ragen.env.textworld.player import solve as adventure
from ragen.env.textworld.text import admissible_in
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


# Search and TextWorld


class SearchPolicy(Policy):
    """Looks up one name after the other; answers other than generated questions with a name that it found."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        action = next_lookup(prompt.chat or prompt.state)
        if action is None or action in prompt.said:
            return self.guess(prompt, rng)
        return Plan("The question leads me there.", (_as_asked(action, prompt),))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        names = re.findall(r"\b[A-Z]\w{2,}(?: [A-Z]\w+)*", prompt.state) or ["nothing"]
        verb = "answer" if prompt.said and rng.random() < 0.5 else "search"
        return Plan("It may be this.", (_as_asked(f"{verb}[{rng.choice(names)}]", prompt),))


def _as_asked(action: str, prompt: Prompt) -> str:
    """The action in RAGEN's syntax if the environment uses it."""
    return action.replace("answer[", "finish[", 1) if "finish[<answer>]" in prompt.state else action


class TextWorldPolicy(Policy):
    """Explores all rooms, follows recipes, and takes the requested items."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        states = _TURN.split(prompt.chat)[1:] or [prompt.state]  # those that the chat still contains
        action = adventure(states, prompt.said)
        return self.guess(prompt, rng) if action is None else Plan("This leads on.", (action,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        return Plan("I try something.", (rng.choice(admissible_in(prompt.state) or ["look"]),))


_TURN = re.compile(r"(?:^|\n)Turn \d+:\nState:\n")
