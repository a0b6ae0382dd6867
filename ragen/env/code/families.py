"""Families of generated problems, each with a text, a solution and generators of arguments.

A family's text and solution share parameters such as ``$k``, so the scripted player can derive the solution from the
text alone. Levels go from 1, a line or two, to 3, an algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import cleandoc
from random import Random
from string import Template
from typing import Any

from ragen.env.wording import Wording

Draw = Callable[[Random, int], Any]
"""Draws one argument; the number grows from 1 over a problem's tests."""

WORDS = re.findall(
    r"\w+", "ash bay cedar dune elm fern glen heath iris jade kelp lime moss nettle oak pine quill reed sage thorn"
)


@dataclass(frozen=True)
class Family:
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

    @cached_property
    def wording(self) -> Wording:
        """The text of a problem."""
        return Wording(f"Write a Python function `{self.name}({self.arguments})`. {self.text}", self.parameters)

    def solution(self, parameters: dict[str, Any]) -> str:
        """A program that solves the problem with these parameters."""
        body = Template(self.source).substitute({name: repr(value) for name, value in parameters.items()})
        return f"def {self.name}({self.arguments}):\n" + "".join(f"    {line}\n" for line in body.strip().splitlines())


def solve(statement: str) -> str | None:
    """A program that solves the problem with this text; None if no family matches."""
    for family in FAMILIES.values():
        if (parameters := family.wording.read(statement)) is not None:
            return family.solution(parameters)
    return None


# Generators of arguments


def _numbers(low: int = -20, high: int = 50, least: int = 0) -> Draw:
    return lambda rng, size: [rng.randint(low, high) for _ in range(rng.randint(least, 3 + 2 * size))]


def _number(low: int, high: int) -> Draw:
    return lambda rng, size: rng.randint(low, min(high, low + (high - low) * (size + 1) // 8 + 1))


def _text(letters: str = "abcde", least: int = 0) -> Draw:
    return lambda rng, size: "".join(rng.choice(letters) for _ in range(rng.randint(least, 4 + 2 * size)))


def _words() -> Draw:
    return lambda rng, size: [rng.choice(WORDS) for _ in range(rng.randint(0, 2 + 2 * size))]


def _sentence() -> Draw:
    return lambda rng, size: " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 2 + 2 * size)))


def _sorted_numbers() -> Draw:
    return lambda rng, size: sorted(_numbers()(rng, size))


def _matrix(low: int = -9, high: int = 9) -> Draw:
    def draw(rng: Random, size: int) -> list[list[int]]:
        rows, columns = rng.randint(1, 1 + size // 2), rng.randint(1, 2 + size // 2)
        return [[rng.randint(low, high) for _ in range(columns)] for _ in range(rows)]

    return draw


def _intervals() -> Draw:
    def draw(rng: Random, size: int) -> list[list[int]]:
        starts = [rng.randint(0, 40) for _ in range(rng.randint(0, 2 + size))]
        return [[start, start + rng.randint(1, 9)] for start in starts]

    return draw


def _edges(nodes: int = 7) -> Draw:
    def draw(rng: Random, size: int) -> list[list[int]]:
        return [rng.sample(range(nodes), 2) for _ in range(rng.randint(1, 3 + size))]

    return draw


def _weighted_edges(nodes: int = 7) -> Draw:
    return lambda rng, size: [[*rng.sample(range(nodes), 2), rng.randint(1, 12)] for _ in range(3 + size)]


def _grid() -> Draw:
    def draw(rng: Random, size: int) -> list[str]:
        width = 2 + size // 2
        return ["".join(rng.choice("..#") for _ in range(width)) for _ in range(rng.randint(1, 2 + size // 2))]

    return draw


def _sums() -> Draw:
    def draw(rng: Random, size: int) -> str:
        terms = [str(rng.randint(0, 20)) for _ in range(rng.randint(1, 2 + size))]
        return "".join(term + rng.choice("+-*") for term in terms[:-1]) + terms[-1]

    return draw


def _brackets() -> Draw:
    def draw(rng: Random, size: int) -> str:
        opened: list[str] = []
        text = ""
        for _ in range(2 * size):
            if opened and rng.random() < 0.5:
                text += opened.pop()
            else:
                pair = rng.choice(("()", "[]", "{}"))
                text += pair[0]
                opened.append(pair[1])
        text += "".join(reversed(opened))
        return text if rng.random() < 0.5 else text.replace(rng.choice("([{)]}"), "", 1)

    return draw


def _family(name: str, arguments: str, level: int, text: str, source: str, *inputs: Draw, **parameters: Any) -> Family:
    return Family(name, arguments, level, text, cleandoc(source), inputs, parameters)


_LIST = [
    _family(
        "sum_of_multiples",
        "numbers",
        1,
        "Return the sum of those numbers of the list that are multiples of $k.",
        "return sum(x for x in numbers if x % $k == 0)",
        _numbers(),
        k=range(2, 12),
    ),
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
        "every_other",
        "items",
        1,
        "Return a list of every item whose index leaves the remainder $r when divided by $k.",
        "return [x for i, x in enumerate(items) if i % $k == $r]",
        _words(),
        k=range(3, 7),
        r=range(3),
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
        "count_letter",
        "text",
        1,
        "Return how often the letter '$c' occurs in the text.",
        "return text.count($c)",
        _text("abcdef"),
        c="abcdef",
    ),
    _family(
        "join_lengths",
        "words",
        1,
        "Return one text: the lengths of the words that have more than $k letters, in order, joined by '$s'.",
        "return $s.join(str(len(w)) for w in words if len(w) > $k)",
        _words(),
        k=range(1, 5),
        s="-:;,",
    ),
    _family(
        "clamp_all",
        "numbers",
        1,
        "Return the list with every number below $a replaced by $a and every number above $b replaced by $b.",
        "return [min(max(x, $a), $b) for x in numbers]",
        _numbers(),
        a=range(-10, 5),
        b=range(10, 30),
    ),
    _family(
        "drop_repeats",
        "items",
        1,
        "Return the list without repeats, keeping the $which occurrence of each item and the order.",
        """
        kept = items if $which == 'first' else items[::-1]
        kept = list(dict.fromkeys(kept))
        return kept if $which == 'first' else kept[::-1]
        """,
        _words(),
        which=("first", "last"),
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
        _sentence(),
        k=range(1, 26),
    ),
    _family(
        "chunks",
        "items",
        2,
        "Split the list into lists of $k items each, the last of which may be shorter, and return those in "
        "$order order.",
        """
        parts = [items[i:i + $k] for i in range(0, len(items), $k)]
        return parts if $order == 'the same' else parts[::-1]
        """,
        _numbers(),
        k=range(2, 6),
        order=("the same", "reverse"),
    ),
    _family(
        "window_sums",
        "numbers",
        2,
        "Return the sums of all runs of $k neighbouring numbers, from left to right.",
        "return [sum(numbers[i:i + $k]) for i in range(len(numbers) - $k + 1)]",
        _numbers(),
        k=range(2, 7),
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
        "most_common",
        "words",
        2,
        "Return the $k most frequent words, the most frequent first; of equally frequent words the "
        "alphabetically smaller first.",
        """
        counts = {}
        for w in words:
            counts[w] = counts.get(w, 0) + 1
        return sorted(counts, key=lambda w: (-counts[w], w))[:$k]
        """,
        _words(),
        k=range(1, 7),
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
        "merge_sorted",
        "first, second",
        2,
        "Both lists are sorted. Return one sorted list of the numbers of both that are $what.",
        """
        both = sorted(first + second)
        return [x for x in both if (x % 2 == 0) == ($what == 'even')]
        """,
        _sorted_numbers(),
        _sorted_numbers(),
        what=("even", "odd"),
    ),
    _family(
        "matrix_turn",
        "matrix",
        2,
        "Return the matrix, a list of rows, turned by $degrees degrees clockwise.",
        """
        for _ in range($degrees // 90):
            matrix = [list(row) for row in zip(*matrix[::-1])]
        return matrix
        """,
        _matrix(),
        degrees=(90, 180, 270),
    ),
    _family(
        "diagonal",
        "matrix",
        2,
        "Return the sum of those entries of the matrix, a list of rows, whose row index plus $k equals their "
        "column index.",
        "return sum(x for i, row in enumerate(matrix) for j, x in enumerate(row) if i + $k == j)",
        _matrix(),
        k=range(-2, 3),
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
        "to_base",
        "number",
        2,
        "Return the non-negative number written in base $b, with digits 0 to 9 and then a, b, c and so on.",
        """
        digits = '0123456789abcdefghij'
        text = ''
        while True:
            text = digits[number % $b] + text
            number //= $b
            if not number:
                return text
        """,
        _number(0, 99999),
        b=range(2, 21),
    ),
    _family(
        "longest_without",
        "text",
        2,
        "Return the length of the longest run of letters in the text that does not contain '$c'.",
        "return max(map(len, text.split($c)))",
        _text("abcde"),
        c="abcde",
    ),
    _family(
        "step_sequence",
        "start",
        2,
        "Begin with the positive number start. An even number is halved; an odd number n becomes $a * n + 1. "
        "Return the first $n numbers of the sequence, start among them.",
        """
        numbers = []
        for _ in range($n):
            numbers.append(start)
            start = start // 2 if start % 2 == 0 else $a * start + 1
        return numbers
        """,
        _number(1, 60),
        a=(3, 5, 7),
        n=range(4, 16),
    ),
    _family(
        "compress_ranges",
        "numbers",
        2,
        "Sort the different numbers and return texts: 'a$s;b' with a and b for each longest run of "
        "consecutive numbers, and 'a' for a number that stands alone.",
        """
        runs = []
        for x in sorted(set(numbers)):
            if runs and x == runs[-1][1] + 1:
                runs[-1][1] = x
            else:
                runs.append([x, x])
        return [str(a) if a == b else str(a) + $s + ';' + str(b) for a, b in runs]
        """,
        _numbers(0, 25),
        s="~:|>",
    ),
    _family(
        "balanced",
        "text",
        2,
        "The text consists of brackets (), [] and {}. Return the deepest nesting if every bracket is closed "
        "in the right order, and $none otherwise.",
        """
        pairs, opened, deepest = {')': '(', ']': '[', '}': '{'}, [], 0
        for c in text:
            if c in pairs:
                if not opened or opened.pop() != pairs[c]:
                    return $none
            else:
                opened.append(c)
                deepest = max(deepest, len(opened))
        return $none if opened else deepest
        """,
        _brackets(),
        none=(-1, -2, -3, -7),
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
        _intervals(),
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
        "longest_rise",
        "numbers",
        3,
        "Return the length of the longest subsequence in which every number is greater than the one before "
        "it by at least $k.",
        """
        best = []
        for i, x in enumerate(numbers):
            best.append(1 + max([best[j] for j in range(i) if x - numbers[j] >= $k], default=0))
        return max(best, default=0)
        """,
        _numbers(),
        k=range(1, 9),
    ),
    _family(
        "edit_distance",
        "first, second",
        3,
        "Return the least cost of turning the first text into the second, where inserting or removing a "
        "letter costs 1 and replacing one costs $k.",
        """
        row = list(range(len(second) + 1))
        for i, a in enumerate(first, 1):
            new = [i]
            for j, b in enumerate(second, 1):
                new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (0 if a == b else $k)))
            row = new
        return row[-1]
        """,
        _text("abc"),
        _text("abc"),
        k=(1, 2),
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
        _edges(),
        n=range(7),
        back=("back", "not back"),
    ),
    _family(
        "shortest_way",
        "edges",
        3,
        "Each edge [a, b, w] leads from a to b, one way, and has the length w. Return the length of the "
        "shortest way from node $n to node $m, or -1 if there is none.",
        """
        import heapq
        queue, seen = [(0, $n)], set()
        while queue:
            d, a = heapq.heappop(queue)
            if a == $m:
                return d
            if a in seen:
                continue
            seen.add(a)
            for x, y, w in edges:
                if x == a:
                    heapq.heappush(queue, (d + w, y))
        return -1
        """,
        _weighted_edges(),
        n=range(4),
        m=range(4, 7),
    ),
    _family(
        "count_islands",
        "grid",
        3,
        "The grid is a list of texts of '.' and '#'. Cells that share a side are neighbours. Return how many "
        "connected areas of '$c' have at least $k cells.",
        """
        left = {(i, j) for i, row in enumerate(grid) for j, x in enumerate(row) if x == $c}
        found = 0
        while left:
            todo, size = [left.pop()], 0
            while todo:
                i, j = todo.pop()
                size += 1
                for cell in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                    if cell in left:
                        left.remove(cell)
                        todo.append(cell)
            found += size >= $k
        return found
        """,
        _grid(),
        c=".#",
        k=range(1, 5),
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
        _sums(),
        m=(97, 101, 1000, 1009),
    ),
    _family(
        "best_stretch",
        "numbers",
        3,
        "Return the largest sum of at least one and at most $k neighbouring numbers; 0 for an empty list.",
        """
        best = [sum(numbers[i:j]) for i in range(len(numbers)) for j in range(i + 1, min(i + $k, len(numbers)) + 1)]
        return max(best, default=0)
        """,
        _numbers(),
        k=range(2, 9),
    ),
    _family(
        "task_order",
        "edges",
        3,
        "Each edge [a, b] says that task a of the tasks 0 to $n comes before task b. Return the order of all "
        "tasks in which, of the tasks that can come next, the one with the smallest number always does, or "
        "an empty list if there is none.",
        """
        import heapq
        needs = {i: set() for i in range($n + 1)}
        for a, b in edges:
            needs[b].add(a)
        order = []
        while needs:
            free = [i for i in needs if not needs[i]]
            if not free:
                return []
            i = min(free)
            order.append(i)
            del needs[i]
            for rest in needs.values():
                rest.discard(i)
        return order
        """,
        _edges(),
        n=(6, 7, 8, 9),
    ),
    _family(
        "josephus",
        "count",
        3,
        "The numbers 1 to count stand in a circle. Beginning with 1, every $k-th is taken out until one is "
        "left. Return the one that is left.",
        """
        left = 0
        for n in range(2, count + 1):
            left = (left + $k) % n
        return left + 1
        """,
        _number(1, 300),
        k=range(2, 9),
    ),
]

FAMILIES: dict[str, Family] = {family.name: family for family in _LIST}
LEVELS = tuple(sorted({family.level for family in _LIST}))
