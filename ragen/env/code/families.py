"""Families of generated problems, each with a text, a solution and generators of arguments.

A family's text and solution share parameters such as ``$k``. Levels go from 1, a line or two, to 3, an algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from inspect import cleandoc
from random import Random
from string import Template
from typing import Any, NamedTuple

Draw = Callable[[Random, int], Any]
"""Draws one argument; the number grows from 1 over a problem's tests."""

WORDS = re.findall(
    r"\w+", "ash bay cedar dune elm fern glen heath iris jade kelp lime moss nettle oak pine quill reed sage thorn"
)


class Family(NamedTuple):
    """Problems that differ in their parameters.

    Attributes:
        name: The name of the function to write.
        arguments: Its parameters, as in a definition.
        level: The level, 1 to 3.
        text: The description of the function.
        source: The body of a solution.
        inputs: A generator for each argument.
        parameters: The possible values of each parameter of text and solution.
    """

    name: str
    arguments: str
    level: int
    text: str
    source: str
    inputs: Sequence[Draw]
    parameters: dict[str, Sequence[Any]]

    def draw(self, rng: Random) -> dict[str, Any]:
        """Draw values of the parameters."""
        return {name: rng.choice(values) for name, values in self.parameters.items()}

    def statement(self, parameters: dict[str, Any]) -> str:
        """The text of a problem."""
        text = f"Write a Python function `{self.name}({self.arguments})`. {self.text}"
        return Template(text).substitute(parameters)

    def solution(self, parameters: dict[str, Any]) -> str:
        """A program that solves the problem with these parameters."""
        body = Template(self.source).substitute({name: repr(value) for name, value in parameters.items()})
        return f"def {self.name}({self.arguments}):\n" + "".join(f"    {line}\n" for line in body.strip().splitlines())


# Generators of arguments


def _numbers(low: int = -20, high: int = 50, least: int = 0) -> Draw:
    return lambda rng, size: [rng.randint(low, high) for _ in range(rng.randint(least, 3 + 2 * size))]


def _number(low: int, high: int) -> Draw:
    return lambda rng, size: rng.randint(low, min(high, low + (high - low) * (size + 1) // 8 + 1))


def _text(letters: str = "abcde", least: int = 0) -> Draw:
    return lambda rng, size: "".join(rng.choice(letters) for _ in range(rng.randint(least, 4 + 2 * size)))


def _sentence(rng: Random, size: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 2 + 2 * size)))


def _intervals(rng: Random, size: int) -> list[list[int]]:
    starts = [rng.randint(0, 40) for _ in range(rng.randint(0, 2 + size))]
    return [[start, start + rng.randint(1, 9)] for start in starts]


def _edges(rng: Random, size: int) -> list[list[int]]:
    return [rng.sample(range(7), 2) for _ in range(rng.randint(1, 3 + size))]


def _sums(rng: Random, size: int) -> str:
    terms = [str(rng.randint(0, 20)) for _ in range(rng.randint(1, 2 + size))]
    return "".join(term + rng.choice("+-*") for term in terms[:-1]) + terms[-1]


def _family(name: str, arguments: str, level: int, text: str, source: str, *inputs: Draw, **parameters: Any) -> Family:
    return Family(name, arguments, level, text, cleandoc(source), inputs, parameters)


_LIST = [
    _family(
        "count_above",
        "numbers",
        1,
        "Return how many numbers of the list are greater than $k.",
        "return sum(x > $k for x in numbers)",
        _numbers(),
        k=range(-10, 40),
    ),
    _family(
        "scale_and_shift",
        "numbers",
        1,
        "Return the list with every number multiplied by $k and then increased by $b.",
        "return [$k * x + $b for x in numbers]",
        _numbers(),
        k=range(2, 10),
        b=range(1, 30),
    ),
    _family(
        "digit_sum",
        "number",
        1,
        "Return the sum of the digits of the non-negative number written in base $b.",
        """
        total = 0
        while number:
            total += number % $b
            number //= $b
        return total
        """,
        _number(0, 9999),
        b=range(2, 17),
    ),
    _family(
        "shift_letters",
        "text",
        1,
        "Return the text with each lower-case letter replaced by the one $k places later in the alphabet, "
        "going round after z; keep everything else.",
        "return ''.join(chr((ord(c) - 97 + $k) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)",
        _sentence,
        k=range(1, 26),
    ),
    _family(
        "rotate",
        "items",
        2,
        "Return the list rotated by $k places to the $side.",
        """
        if not items:
            return []
        k = $k % len(items)
        k = k if $side == 'left' else -k
        return items[k:] + items[:k]
        """,
        _numbers(),
        k=range(1, 9),
        side=("left", "right"),
    ),
    _family(
        "run_lengths",
        "text",
        2,
        "Return a list of [letter, length] for every run of equal letters that is at least $k long, in order.",
        """
        runs = []
        for c in text:
            if runs and runs[-1][0] == c:
                runs[-1][1] += 1
            else:
                runs.append([c, 1])
        return [r for r in runs if r[1] >= $k]
        """,
        _text("aab"),
        k=range(1, 5),
    ),
    _family(
        "pairs_with_sum",
        "numbers",
        2,
        "Return how many pairs of different positions hold numbers that add up to $k.",
        """
        seen, found = {}, 0
        for x in numbers:
            found += seen.get($k - x, 0)
            seen[x] = seen.get(x, 0) + 1
        return found
        """,
        _numbers(-10, 20),
        k=range(-5, 25),
    ),
    _family(
        "group_by_remainder",
        "numbers",
        2,
        "Return a dict from each remainder of division by $k that occurs to the list of numbers that leave "
        "it, in order.",
        """
        groups = {}
        for x in numbers:
            groups.setdefault(x % $k, []).append(x)
        return groups
        """,
        _numbers(),
        k=range(2, 9),
    ),
    _family(
        "merge_intervals",
        "intervals",
        3,
        "Each interval is [start, end]. Merge all that overlap, touch, or have a gap of at most $k between "
        "them, and return them sorted.",
        """
        merged = []
        for a, b in sorted(intervals):
            if merged and a <= merged[-1][1] + $k:
                merged[-1][1] = max(merged[-1][1], b)
            else:
                merged.append([a, b])
        return merged
        """,
        _intervals,
        k=range(0, 5),
    ),
    _family(
        "fewest_coins",
        "amount",
        3,
        "Return the fewest coins of the values $a, $b and $c that make up the amount, each usable any number "
        "of times, or -1 if none do.",
        """
        best = [0] + [None] * amount
        for x in range(1, amount + 1):
            ways = [best[x - v] for v in ($a, $b, $c) if v <= x and best[x - v] is not None]
            best[x] = min(ways) + 1 if ways else None
        return -1 if best[amount] is None else best[amount]
        """,
        _number(0, 150),
        a=(2, 3, 4),
        b=(5, 7, 9),
        c=(11, 13, 20),
    ),
    _family(
        "reachable",
        "edges",
        3,
        "The edges [a, b] lead from a to b and $back. Return the sorted nodes that can be reached from node "
        "$n, itself among them.",
        """
        ways = {}
        for a, b in edges:
            ways.setdefault(a, set()).add(b)
            if $back == 'back':
                ways.setdefault(b, set()).add(a)
        seen, todo = {$n}, [$n]
        while todo:
            for b in ways.get(todo.pop(), ()):
                if b not in seen:
                    seen.add(b)
                    todo.append(b)
        return sorted(seen)
        """,
        _edges,
        n=range(7),
        back=("back", "not back"),
    ),
    _family(
        "evaluate_sum",
        "text",
        3,
        "The text is a sum such as 3+4*2-1, of whole numbers and +, - and *, without spaces; * comes first. "
        "Return its value modulo $m.",
        r"""
        total, sign, product = 0, 1, 1
        import re
        for t in re.findall(r'\d+|[+*-]', text):
            if t.isdigit():
                product *= int(t)
            elif t != '*':
                total += sign * product
                sign, product = (1 if t == '+' else -1), 1
        return (total + sign * product) % $m
        """,
        _sums,
        m=(97, 101, 1000, 1009),
    ),
]

FAMILIES: dict[str, Family] = {family.name: family for family in _LIST}
LEVELS = tuple(sorted({family.level for family in _LIST}))
