"""Finds an expression for a Countdown puzzle."""

from __future__ import annotations

from itertools import product


def solve(numbers: list[int], target: int) -> str | None:
    """A sum of the numbers, each with plus or minus, that has this value; None if there is none.

    Every puzzle of the environment has one, apart from those of more than four numbers.

    Args:
        numbers: The numbers to use, none negative.
        target: The value to reach.
    """
    if not numbers or min(numbers) < 0 or len(numbers) > 12:
        return None
    for signs in product((1, -1), repeat=len(numbers)):
        signed = [sign * number for sign, number in zip(signs, numbers, strict=True)]
        if sum(signed) == target:
            return " ".join(f"{'+-'[number < 0]} {abs(number)}" for number in signed).removeprefix("+ ")
    return None
