"""Boards drawn as grids: rows of equal length, of few different symbols, each symbol in a colour of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ragen.llm_agent.report.text import shown

_MOST_CELLS = 30 * 40
_MOST_SYMBOLS = 9
COLOURS = 8
_FIRST = {"#": 0, "_": 1, " ": 1, ".": 1}  # walls and floors


class Palette:
    """Which colour a symbol has. It keeps it: a board that lacks a symbol is drawn as those that have it."""

    def __init__(self) -> None:
        """Know walls and floors alone."""
        self._colours = dict(_FIRST)
        self._next = max(_FIRST.values())

    def colours_of(self, symbols: str) -> dict[str, int]:
        """The colours of all symbols of a board, from 0; new ones get the next, in the order of their letters."""
        for symbol in sorted(set(symbols) - self._colours.keys()):
            self._next = self._next + 1 if self._next + 1 < COLOURS else max(_FIRST.values()) + 1
            self._colours[symbol] = self._next
        return {symbol: self._colours[symbol] for symbol in set(symbols)}


def grid_of(text: str, palette: Palette) -> str:
    """A board as HTML; empty for a text that is none."""
    lines = [line.strip() for line in text.strip("\n").splitlines()]
    if not _is_board(lines):
        return ""
    if all(set(line[1::2]) <= {" "} for line in lines):
        lines = [line[::2] for line in lines]  # symbols with blanks between them
    colours = palette.colours_of("".join(lines))
    cells = "".join(f'<span class="c{colours[symbol]}">{shown(symbol)}</span>' for line in lines for symbol in line)
    return f'<div class="grid" style="grid-template-columns:repeat({len(lines[0])},auto)">{cells}</div>'


def _is_board(lines: Sequence[str]) -> bool:
    width = len(lines[0]) if lines else 0
    return (
        len(lines) > 1
        and width > 1
        and len(lines) * width <= _MOST_CELLS
        and all(len(line) == width and line.isascii() and line.isprintable() for line in lines)
        and len(set("".join(lines))) <= _MOST_SYMBOLS
    )
