"""Finds an expression for a Countdown puzzle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

_SEARCH_LIMIT = 200_000  # maximum number of pairs of numbers to combine

Term = tuple[int, str]
"""A value, and the expression that has it."""


def solve(numbers: list[int], target: int) -> str | None:
    """An expression with this value that uses each number once.

    Tries sums and differences first, then all four operations in every order, up to a limit that is rarely reached with
    five numbers and often with six.

    Args:
        numbers: The numbers to use, none negative.
        target: The value to reach.

    Returns:
        An expression in Python's notation, or None if none was found.
    """
    if not numbers or min(numbers) < 0:
        return None
    return _signed_sum(numbers, target) or _any_expression(numbers, target)


def _signed_sum(numbers: list[int], target: int) -> str | None:
    if len(numbers) > 12:
        return None
    for signs in product((1, -1), repeat=len(numbers)):
        if sum(sign * number for sign, number in zip(signs, numbers, strict=True)) == target:
            plus = [str(number) for sign, number in zip(signs, numbers, strict=True) if sign > 0]
            minus = [str(number) for sign, number in zip(signs, numbers, strict=True) if sign < 0]
            return " - ".join([" + ".join(plus), *minus]) if plus else "-" + " - ".join(minus)
    return None


def _any_expression(numbers: list[int], target: int) -> str | None:
    stack: list[list[Term]] = [[(number, str(number)) for number in numbers]]
    seen: set[tuple[int, ...]] = set()
    tried = 0
    while stack and tried < _SEARCH_LIMIT:
        terms = stack.pop()
        if len(terms) == 1:
            if terms[0][0] == target:
                return terms[0][1].removeprefix("(").removesuffix(")")
            continue
        for i, j in combinations(range(len(terms)), 2):
            rest = [term for k, term in enumerate(terms) if k not in (i, j)]
            for combined in _combined(terms[i], terms[j]):
                tried += 1
                values = tuple(sorted([combined[0], *(value for value, _ in rest)]))
                if values not in seen:
                    seen.add(values)
                    stack.append([*rest, combined])
    return None


def _combined(left: Term, right: Term) -> Iterator[Term]:
    (a, x), (b, y) = left, right
    yield a + b, f"({x} + {y})"
    yield a * b, f"({x} * {y})"
    yield a - b, f"({x} - {y})"
    yield b - a, f"({y} - {x})"
    if b and a % b == 0:
        yield a // b, f"({x} / {y})"
    if a and b % a == 0:
        yield b // a, f"({y} / {x})"
