"""What happens to a command whose output is no longer read: ``ragen doctor | head -1``.

Python raises BrokenPipeError then, wherever it happens to write, and libraries make other errors of it. A command that
only prints ends quietly, with ``CLOSED``, as SIGPIPE would end it. One that has work to finish (rows to write, replies
that were paid for) goes on without printing, and ends with the same exit code where all went well; or it stops as
Ctrl-C stops it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

CLOSED = 141
"""Exit code where who read the output wants no more, as a shell reports SIGPIPE."""

SECRET_NAME = re.compile(
    r"(api|access|secret)[-_.]?key|authorization|password|passwd|credential|secret|(^|[-_.])token$", re.I
)
"""What the name of a setting that holds a secret looks like."""
_USER = re.compile(r"^(\W*\w+://)?.*@", re.S)
_QUERY = re.compile(r"[?#].*", re.S)
_LONGEST_LINE = 1000  # characters
_MOST_LINES = 200


def printable(text: str, longest: int = _LONGEST_LINE) -> str:
    r"""A text from elsewhere (a server, a model, an environment) as a terminal may show it.

    Escape sequences could set a terminal's title, clear it or hide what stands there. Control characters and those
    that only change the direction or the look of others are shown as escapes such as ``\x1b``.

    Args:
        text: The text. Line breaks and tabs stay.
        longest: The most characters of one line; of a longer one, how many it has is said.
    """
    lines = [_printable_line(line, longest) for line in text.split("\n")]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... ({len(lines)} lines)"]
    return "\n".join(lines)


def _printable_line(line: str, longest: int) -> str:
    if len(line) > longest:
        line = f"{line[:longest]}... ({len(line)} characters)"
    if line.isprintable():
        return line
    return "".join(_shown(character) for character in line)


def _shown(character: str) -> str:
    if character == "\t" or character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def shown_address(url: str) -> str:
    """An address as messages and files may show it: what stands before its host, and its query, are left out."""
    return _QUERY.sub("?***", _USER.sub(r"\1***@", url))


def shown_override(word: str) -> str:
    """A word of a command, such as ``key=value``, as messages and files may show it: without what may be a secret."""
    key, equals, value = word.partition("=")
    if equals and SECRET_NAME.search(key) and not key.endswith("api_key_env"):
        return f"{key}=***"
    return f"{key}{equals}{shown_address(value)}" if "://" in value else word


class PrintableFormatter(logging.Formatter):
    """Formats log records so that a terminal may show them; see :func:`printable`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, its traceback included."""
        return printable(super().format(record))


class Watched:
    """A stream of text that notices when it is no longer read; all else is the stream's own.

    Attributes:
        is_cut: Whether it is no longer read.
    """

    def __init__(self, stream: Any, on_cut: Callable[[], None] | None = None) -> None:
        """Write to a stream.

        Args:
            stream: Such as ``sys.stdout``.
            on_cut: Called when it is no longer read; from then on nothing is written. None raises BrokenPipeError.
        """
        self._stream, self._on_cut = stream, on_cut
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; its length."""
        with self._noticed():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several."""
        with self._noticed():
            self._stream.writelines(lines)

    def flush(self) -> None:
        """Hand on what was written."""
        with self._noticed():
            self._stream.flush()

    @contextlib.contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            is_news, self.is_cut = not self.is_cut, True
            silence(self._stream)
            if self._on_cut is None:
                raise
            if is_news:
                self._on_cut()


def silence(stream: Any) -> None:
    """Let what is still written to a stream, now or when the process ends, go nowhere."""
    with contextlib.suppress(OSError, AttributeError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


@contextlib.contextmanager
def output_watched(on_cut: Callable[[], None] | None = None) -> Iterator[Watched]:
    """Watch standard output, and standard error, for the length of a block.

    Python has None for one that was closed before the start (``>&-``); there is one that goes nowhere, in the block.
    Log records that reach standard error because logging is not configured are made :func:`printable`.

    Args:
        on_cut: Called when standard output is no longer read. None raises BrokenPipeError where either is written;
            else the block goes on in silence.

    Yields:
        What stands for standard output.
    """
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        output = Watched(before[0] or nowhere, on_cut)
        errors = Watched(before[1] or nowhere, None if on_cut is None else _nothing)
        sys.stdout, sys.stderr = output, errors  # type: ignore[assignment]
        unconfigured = logging.lastResort
        formatter = unconfigured.formatter if unconfigured is not None else None
        if unconfigured is not None:
            unconfigured.setFormatter(PrintableFormatter())
        try:
            yield output
            output.flush()  # here, where it can still be reported
        finally:
            sys.stdout, sys.stderr = before
            if unconfigured is not None:
                unconfigured.setFormatter(formatter)


def _nothing() -> None:
    """Do nothing where errors are no longer read."""
