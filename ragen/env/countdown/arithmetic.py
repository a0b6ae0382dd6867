"""A calculator for Countdown: whole numbers, ``+ - * /``, parentheses and signs; exact, and never passed to ``eval``.

Python's parser reads the text, of which only these operators and numbers of ASCII digits are taken. Nothing costs more
than some milliseconds: length, nesting and the size of intermediate results are bounded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from fractions import Fraction
from operator import add, mul, neg, pos, sub, truediv
from typing import Any

MAX_LENGTH = 10_000
"""Characters of the longest expression."""

MAX_DEPTH = 100
"""Maximum nesting of operations and signs, far below Python's own limit, which depends on the caller's stack."""

MAX_BITS = 1024
"""Bits of the largest numerator and denominator."""

_ALPHABET = re.compile(r"[-+*/()0-9 \t\n\r\f\v]+")
_OPERATORS: dict[type, Callable[..., Fraction]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv, ast.UAdd: pos, ast.USub: neg,
}  # fmt: skip


class ExpressionError(ValueError):
    """The text is not an arithmetic expression, or it has no value within bounds."""


def evaluate(text: str) -> Fraction:
    """The exact value of an arithmetic expression.

    Args:
        text: Any text.

    Raises:
        ExpressionError: The text is not an expression, exceeds a bound, or divides by zero.
    """
    if len(text) > MAX_LENGTH or not _ALPHABET.fullmatch(text) or re.search(r"\b00", text):
        raise ExpressionError("not an expression of whole numbers, or too long")
    try:
        return _value(ast.parse(" ".join(text.split()), mode="eval").body, MAX_DEPTH)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError) as error:
        raise ExpressionError(f"no value: {error}") from None


def _value(node: Any, left: int) -> Fraction:
    if left == 0:
        raise ExpressionError("nested too deeply")
    if isinstance(node, ast.Constant):
        number: Any = node.value  # the text has whole numbers alone
        value = Fraction(number)
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.operand, left - 1))
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.left, left - 1), _value(node.right, left - 1))
    else:
        raise ExpressionError(f"unexpected {type(node).__name__}")
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ExpressionError("the result is too large")
    return value
