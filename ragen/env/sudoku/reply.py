"""Parses placements from a model's text, in any of six forms, anywhere in the text.

Only the beginning of a very long text is parsed. Every pattern takes linear time, since runs of digits or spaces are
matched as a whole or not at all.
"""

from __future__ import annotations

import re
from typing import NamedTuple

READ_LIMIT = 10_000
"""Number of characters of a reply that are parsed."""

_V, _R, _C = (rf"(?P<{name}>\d++)" for name in ("value", "row", "column"))
_COMMA = r"\s*+,\s*+"

_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"place\s++{_V}\s++at\s++row\s++{_R}\s++col\s++{_C}",
        rf"place\s++{_V}\s++at\s*+\(\s*+{_R}{_COMMA}{_C}\s*+\)",
        rf"place\s++{_V}\s++at\s++{_R}{_COMMA}{_C}",
        rf"(?<!\d){_V}\s++at\s++{_R}{_COMMA}{_C}",
        rf"\(\s*+{_R}{_COMMA}{_C}{_COMMA}{_V}\s*+\)",
        rf"(?<!\d){_R}{_COMMA}{_C}{_COMMA}{_V}",
    )
)


class Placement(NamedTuple):
    """A number and its cell, counted from 1; ranges are not checked."""

    value: int
    row: int
    column: int


def read_placement(text: str) -> Placement | None:
    """The placement in a text.

    Args:
        text: Any text.

    Returns:
        The first match of the first pattern that matches; None if none does.
    """
    text = text[:READ_LIMIT].lower()
    match = next(filter(None, (pattern.search(text) for pattern in _PATTERNS)), None)
    if match is None:
        return None
    try:
        return Placement(*(int(match[name]) for name in Placement._fields))
    except ValueError:  # more digits than Python converts
        return None
