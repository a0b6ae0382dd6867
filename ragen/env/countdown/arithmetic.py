"""A calculator for Countdown: whole numbers, ``+ - * /``, parentheses and signs; exact, and never passed to ``eval``.

Everything else is an error: points, exponents and underscores in numbers, other operators, comments, digits of other
scripts. Nothing costs more than some milliseconds: length, nesting and the size of intermediate results are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from operator import add, mul, sub, truediv

MAX_LENGTH = 10_000
"""Characters of the longest expression."""

MAX_DEPTH = 50
"""How deep parentheses and signs may be nested."""

MAX_BITS = 1024
"""Bits of the largest numerator and denominator."""


class ExpressionError(ValueError):
    """The text is not an arithmetic expression, or it has no value within bounds."""


_TOKEN = re.compile(r"\s*(0|[1-9][0-9]*|[-+*/()])", re.ASCII)
_BINARY: dict[str, tuple[int, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": (1, add),
    "-": (1, sub),
    "*": (2, mul),
    "/": (2, truediv),
}
_END = ""


def _tokens(text: str) -> Iterator[str]:
    """The numbers, operators and parentheses, then ``_END``."""
    at, text = 0, text.rstrip(" \t\n\r\f\v")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"unexpected {text[at : at + 10]!r}")
        yield match[1]
        at = match.end()
    yield _END


class _Calculator:
    """Reads tokens from left to right and computes as it goes; one method per rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._token = next(self._rest)
        self._depth = 0

    def result(self) -> Fraction:
        value = self._binary(1)
        if self._token != _END:
            raise ExpressionError(f"unexpected {self._token!r}")
        return value

    def _next(self) -> str:
        token, self._token = self._token, next(self._rest, _END)
        return token

    def _binary(self, weakest: int) -> Fraction:
        left = self._signed()
        while self._token in _BINARY and _BINARY[self._token][0] >= weakest:
            strength, compute = _BINARY[self._next()]
            left = _bounded(compute(left, self._binary(strength + 1)))
        return left

    def _signed(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError("nested too deeply")
        token = self._next()
        if token in ("+", "-"):
            value = self._signed() if token == "+" else -self._signed()
        elif token == "(":
            value = self._binary(1)
            if self._next() != ")":
                raise ExpressionError("expected ')'")
        elif token[:1].isdigit() and len(token) < MAX_BITS:
            value = _bounded(Fraction(int(token)))
        else:
            raise ExpressionError(f"unexpected {token[:10]!r}")
        self._depth -= 1
        return value


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ExpressionError("the result is too large")
    return value


def evaluate(text: str) -> Fraction:
    """The exact value of an arithmetic expression.

    Args:
        text: Any text.

    Raises:
        ExpressionError: The text is not an expression, exceeds a bound, or divides by zero.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    try:
        return _Calculator(text).result()
    except ZeroDivisionError:
        raise ExpressionError("division by zero") from None
