"""A calculator for a model's text: Python's arithmetic, parsed here and never passed to ``eval``.

It supports Python's numbers, parentheses, ``+ - * / // % **``, bit operators, signs, line breaks inside parentheses,
and comments, with Python's results including rounding. Names, calls, comparisons and everything else are errors.
Nothing costs more than a fraction of a millisecond: nesting, the size of powers and shifts, and the number of
characters read are bounded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

Number = int | float | complex

MAX_LENGTH = 10_000
"""Characters of the longest expression."""

MAX_DEPTH = 50
"""How deep parentheses, signs and powers may be nested."""

MAX_BITS = 16_384
"""Bits of the largest integer that a power or a shift may make."""


class ExpressionError(ValueError):
    """The text is not an arithmetic expression, or it has no value within bounds."""


_TOKEN = re.compile(
    r"""(?P<number>0[xXoObB][\da-fA-F_]+
          | (?:\d[\d_]*(?:\.[\d_]*)? | \.\d[\d_]*) (?:[eE][+-]?\d[\d_]*)? [jJ]?)
      | (?P<operator>\*\*|//|<<|>>|[-+*/%()~&|^])
      | (?P<newline>\n)
      | (?P<blank>[ \t\f]+|\#[^\n]*|\\\n)
      | (?P<other>.)""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_END = ""


def _tokens(text: str) -> Iterator[str]:
    """The numbers, operators and parentheses of one logical line, then ``_END`` forever."""
    depth = line_start = 0
    begun = ended = False
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "newline":
            ended = ended or (begun and depth == 0)
            line_start = match.end()
        elif kind != "blank":
            indented = not begun and line_start not in (0, match.start())
            if kind == "other" or ended or indented:
                raise ExpressionError(f"unexpected {token!r}")
            begun = True
            depth += (token == "(") - (token == ")")
            yield token
    while True:
        yield _END


def _number(token: str) -> Number:
    if token[-1] in "jJ":
        return complex(0, float(token[:-1]))
    if token.replace("_", "").isdigit() or token[1:2] in tuple("xXoObB"):
        return int(token, 0)
    return float(token)


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int):
        bits = base.bit_length() * exponent
        if abs(base) > 1 and bits > MAX_BITS:
            raise ExpressionError("the power is too large")
    return base**exponent


def _shift_left(number: Number, places: Number) -> Number:
    if isinstance(number, int) and isinstance(places, int) and number.bit_length() + places > MAX_BITS:
        raise ExpressionError("the shift is too large")
    return operator.lshift(number, places)  # type: ignore[arg-type]


_BINARY: dict[str, tuple[int, Callable[[Number, Number], Number]]] = {
    "|": (1, operator.or_),
    "^": (2, operator.xor),
    "&": (3, operator.and_),
    "<<": (4, _shift_left),
    ">>": (4, operator.rshift),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
    "/": (6, operator.truediv),
    "//": (6, operator.floordiv),
    "%": (6, operator.mod),
}
_UNARY: dict[str, Callable[[Any], Number]] = {"+": operator.pos, "-": operator.neg, "~": operator.invert}


class _Calculator:
    """Reads tokens from left to right and computes as it goes; one method per rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._token = next(self._rest)
        self._depth = 0

    def result(self) -> Number:
        value = self._binary(1)
        if self._token != _END:
            raise ExpressionError(f"unexpected {self._token!r}")
        return value

    def _next(self) -> str:
        token, self._token = self._token, next(self._rest)
        return token

    def _binary(self, weakest: int) -> Number:
        left = self._signed()
        while self._token in _BINARY and _BINARY[self._token][0] >= weakest:
            strength, compute = _BINARY[self._next()]
            left = compute(left, self._binary(strength + 1))
        return left

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError("nested too deeply")
        value = _UNARY[self._next()](self._signed()) if self._token in _UNARY else self._raised()
        self._depth -= 1
        return value

    def _raised(self) -> Number:
        base = self._atom()
        if self._token == "**":
            self._next()
            return _power(base, self._signed())
        return base

    def _atom(self) -> Number:
        token = self._next()
        if token == "(":
            value = self._binary(1)
            if self._next() != ")":
                raise ExpressionError("expected ')'")
            return value
        if token[:1].isdigit() or token[:1] == ".":
            return _number(token)
        raise ExpressionError(f"unexpected {token!r}")


def evaluate(text: str) -> Number:
    """The value of an arithmetic expression.

    Args:
        text: Any text.

    Returns:
        The value that Python would compute.

    Raises:
        ExpressionError: The text is not an expression, exceeds a bound, or divides by zero.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip(" \t")
    without_blanks = text.rstrip(" \t\f")
    if without_blanks != text and without_blanks.endswith("\n"):
        raise ExpressionError("unexpected indent")  # Python's error for a last line of blanks
    try:
        return _Calculator(text).result()
    except ExpressionError:
        raise
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ExpressionError(str(error)) from error
