"""Arrow keys at a terminal: a line is typed as ever, or one of the four keys says Up, Down, Left or Right at once.

Where there is no terminal, or none whose mode can be set, nothing of this is used: lines are words as before.
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
_REST_S = 0.05  # in which the rest of a key's letters arrive


@contextmanager
def typed(lines: TextIO, out: TextIO) -> Iterator[TextIO]:
    """Lines as they are typed, arrow keys among them where ``lines`` is a terminal; its mode is restored afterwards.

    Args:
        lines: Where to read from.
        out: The terminal, for what is typed to be seen.
    """
    try:
        import termios
        import tty

        number = lines.fileno()
        before = termios.tcgetattr(number) if lines.isatty() and out.isatty() else None
    except (ImportError, OSError, ValueError, AttributeError):  # not this system, or something that is not a file
        before = None
    if before is None:
        yield lines
        return
    try:
        tty.setcbreak(number, termios.TCSADRAIN)
        yield KeyReader(number, out)  # type: ignore[misc]  # as much of a TextIO as a player needs
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


class KeyReader:
    """Reads a terminal in cbreak mode, letter by letter."""

    def __init__(self, number: int, out: TextIO) -> None:
        """Read from this descriptor, and show what is typed there."""
        self._number, self._out = number, out
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: list[str] = []

    def isatty(self) -> bool:
        """True."""
        return True

    def readline(self) -> str:
        """What was typed before Enter, or the name of an arrow key; empty at the end of input."""
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
        """The arrow key whose first letter was read; None for any other key, whose letters are read too."""
        letters = ""
        while self._has_more() and not ("@" <= letters[1:][-1:] <= "~"):
            letters += self._letter()
        return ARROWS.get(letters[1:]) if letters[:1] in ("[", "O") else None

    def _has_more(self) -> bool:
        return bool(self._waiting) or bool(select.select([self._number], [], [], _REST_S)[0])

    def _letter(self) -> str:
        """The next letter; empty at the end of input."""
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
