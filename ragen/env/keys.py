"""Input from a terminal: a line, or an arrow key, which is read as Up, Down, Left or Right without Enter.

Without a terminal whose mode can be set, only lines are read.
"""

from __future__ import annotations

import codecs
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

ARROWS = {"A": "Up", "B": "Down", "C": "Right", "D": "Left"}
"""The last letter of what a terminal sends for a key, and the action that it names."""
_ESCAPE, _END, _ERASE, _LINE = "\x1b", "\x04", ("\x7f", "\b"), ("\r", "\n")
_REST_S = 0.05  # maximum delay of the rest of an escape sequence


@contextmanager
def typed(lines: TextIO, out: TextIO) -> Iterator[TextIO]:
    """Read lines, and arrow keys if ``lines`` is a terminal, whose mode is restored afterwards.

    Args:
        lines: The input.
        out: The terminal on which input is echoed.
    """
    try:
        import termios
        import tty

        number = lines.fileno()
        before = termios.tcgetattr(number) if lines.isatty() and out.isatty() else None
    except (ImportError, OSError, ValueError, AttributeError):  # not on this system, or not a file
        before = None
    if before is None:
        yield lines
        return
    try:
        tty.setcbreak(number, termios.TCSADRAIN)
        yield KeyReader(number, out)  # type: ignore[misc]  # the part of TextIO that a player needs
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


class KeyReader:
    """Reads a terminal in cbreak mode, character by character."""

    def __init__(self, number: int, out: TextIO) -> None:
        """Read from this descriptor, and echo to ``out``."""
        self._number, self._out = number, out
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: list[str] = []

    def isatty(self) -> bool:
        """True."""
        return True

    def readline(self) -> str:
        """A line without its end, or the name of an arrow key; empty at the end of input."""
        text = ""
        while True:
            letter = self._letter()
            if letter == "" or (letter == _END and not text):
                return ""
            if letter == _ESCAPE:
                if (arrow := self._arrow()) and not text:
                    return self._shown(f"{arrow}\n")
            elif letter in _LINE:
                self._shown("\n")
                return f"{text}\n"
            elif letter in _ERASE:
                self._shown("\b \b" if text else "")
                text = text[:-1]
            elif letter.isprintable():
                text += self._shown(letter)

    def _arrow(self) -> str | None:
        """The arrow key whose first byte was read; None for other keys, whose bytes are consumed."""
        letters = ""
        while self._has_more() and not ("@" <= letters[1:][-1:] <= "~"):
            letters += self._letter()
        return ARROWS.get(letters[1:]) if letters[:1] in ("[", "O") else None

    def _has_more(self) -> bool:
        return bool(self._waiting) or bool(select.select([self._number], [], [], _REST_S)[0])

    def _letter(self) -> str:
        """The next character; empty at the end of input."""
        while not self._waiting:
            data = os.read(self._number, 1024)
            if not data:
                return ""
            self._waiting += self._decoder.decode(data)
        return self._waiting.pop(0)

    def _shown(self, text: str) -> str:
        self._out.write(text)
        self._out.flush()
        return text
