"""The score of a reply to a Countdown puzzle."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ragen.env.countdown.arithmetic import MAX_LENGTH, ExpressionError, evaluate

_DIGITS = re.compile(r"\d+")


def uses_each_once(text: str, numbers: Iterable[int]) -> bool:
    """Whether the runs of digits in a text are the numbers, each once, in any order.

    Signs and points are ignored; digits of any script count; a text longer than any expression fails.
    """
    wanted = sorted(numbers)
    if len(text) > MAX_LENGTH:
        return False
    runs = _DIGITS.findall(text)
    if len(runs) != len(wanted):
        return False
    try:
        return sorted(map(int, runs)) == wanted
    except ValueError:  # more digits than Python converts
        return False


def reaches(text: str, target: int) -> bool:
    """Whether a text is an arithmetic expression with exactly this value."""
    try:
        return evaluate(text) == target
    except ExpressionError:
        return False
