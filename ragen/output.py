"""Handling of closed output, as in ``ragen doctor | head -1``.

Python raises BrokenPipeError in whatever code writes next, and libraries turn it into other errors. A command that only
prints ends quietly, with ``CLOSED``, as SIGPIPE would end it. A command with work to finish (rows to write, replies
already paid for) continues without printing, and ends with the same exit code if it succeeds; or it stops as after
Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ragen.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.segment import Segment
    from rich.table import Table

CLOSED = 141
"""Exit code after the output was closed, as a shell reports SIGPIPE."""

SECRET_NAME = re.compile(
    r"(api|access|secret)[-_.]?key|authorization|password|passwd|credential|secret|(^|[-_.])token$", re.I
)
"""Pattern of the names of settings that hold secrets."""
LOOKS_SECRET = re.compile(r"\b(sk|key|org)-[\w*.-]{6,}")
"""Pattern of texts that may be secrets."""
_USER = re.compile(r"^(\W*\w+://)?.*@", re.S)
_QUERY = re.compile(r"[?#].*", re.S)
_LONGEST_LINE = 1000  # characters
_MOST_LINES = 200
_WHOLE = 10_000  # characters, more than a line of a table has
_UNBOUNDED = 1000  # characters, of a table that is measured


def printable(text: str, longest: int = _LONGEST_LINE) -> str:
    r"""A text from an untrusted source (a server, a model, an environment) made safe for a terminal.

    Escape sequences could set a terminal's title, clear it or hide its content. Control characters, and characters that
    only change the direction or look of others, are shown as escapes such as ``\x1b``.

    Args:
        text: The text. Line breaks and tabs are kept.
        longest: Maximum number of characters per line; a longer line is truncated, with its length.
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
    """An address for messages and files, without credentials and query."""
    return _QUERY.sub("?***", _USER.sub(r"\1***@", url))


def shown_override(word: str) -> str:
    """A word of a command, such as ``key=value``, for messages and files, without possible secrets."""
    key, equals, value = word.partition("=")
    if "://" in key:
        return shown_address(word)
    if equals and SECRET_NAME.search(key) and not key.endswith("api_key_env"):
        return f"{key}=***"
    is_address = "://" in value or key.endswith("url")
    return LOOKS_SECRET.sub("***", f"{key}{equals}{shown_address(value)}" if is_address else word)


def shown_words(words: Iterable[str]) -> str:
    """Words of a command as a shell takes them, without possible secrets."""
    return " ".join(shlex.quote(shown_override(word)) for word in words)


def shown_settings(value: Any, name: str = "") -> Any:
    """Settings as plain dicts, lists and values, without possible secrets."""
    if isinstance(value, dict):
        return {key: shown_settings(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [shown_settings(item, name) for item in value]
    return shown_override(f"{name}={value}").partition("=")[2] if isinstance(value, str) else value


def new_console(is_plain: bool = False) -> Console:
    """A ``rich`` console of standard output that keeps each line whole in a pipe or a file.

    In a terminal, lines wrap; the variable ``COLUMNS`` sets the width of both.

    Args:
        is_plain: Whether texts are printed as they are: without markup, emoji codes and highlighting.
    """
    try:
        from rich.console import Console
    except ImportError as error:  # hydra is not installed
        raise MissingExtraError("tables are printed with rich: python -m pip install rich") from error
    made = Console(markup=not is_plain, emoji=not is_plain, highlight=not is_plain)
    if not (made.is_terminal or made.is_jupyter or "COLUMNS" in os.environ):
        made.width = _WHOLE
    return made


class Trimmed:
    """A table for a ``rich`` console, without the spaces with which ``rich`` fills its lines."""

    def __init__(self, table: Table, width: int | None = None) -> None:
        """Take the table, and its width in characters if that is not the console's."""
        self._table, self._width = table, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the table."""
        from rich.segment import Segment

        options = options if self._width is None else options.update(width=self._width)
        for line in console.render_lines(self._table, options, pad=False):
            yield from _without_end(line)
            yield Segment.line()


def _without_end(line: list[Segment]) -> list[Segment]:
    kept = [*line]
    while kept and not kept[-1].text.rstrip(" "):
        kept.pop()
    return [*kept[:-1], kept[-1]._replace(text=kept[-1].text.rstrip(" "))] if kept else []


def print_table(console: Console, table: Table) -> None:
    """Print a table; in a terminal that is too narrow for its numbers, its lines wrap."""
    width = console.width
    if all(column.no_wrap for column in table.columns[1:]):
        unbounded = console.options.update(width=_UNBOUNDED)
        width = max(width, console.measure(table, options=unbounded).maximum)
    console.print(Trimmed(table, width), crop=False)


class PrintableFormatter(logging.Formatter):
    """Formats log records safely for a terminal; see :func:`printable`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, its traceback included."""
        return printable(super().format(record))


class Watched:
    """A text stream that detects when it was closed by its reader; everything else is delegated.

    Attributes:
        is_cut: Whether the reader has closed it.
    """

    def __init__(self, stream: Any, on_cut: Callable[[], None] | None = None) -> None:
        """Wrap a stream.

        Args:
            stream: The stream, such as ``sys.stdout``.
            on_cut: Called when the reader has closed it; from then on nothing is written. None raises BrokenPipeError.
        """
        self._stream, self._on_cut = stream, on_cut
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        with self._noticed():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several."""
        with self._noticed():
            self._stream.writelines(lines)

    def flush(self) -> None:
        """Flush the stream."""
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
    """Discard everything written to a stream from now on."""
    with contextlib.suppress(OSError, AttributeError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


@contextlib.contextmanager
def output_watched(on_cut: Callable[[], None] | None = None) -> Iterator[Watched]:
    """Watch standard output and standard error within the block.

    A stream that was closed before the start (``>&-``), for which Python has None, is replaced by one that discards
    everything. Log records that reach standard error because logging is not configured are made :func:`printable`.

    Args:
        on_cut: Called when the reader has closed standard output, after which the block continues silently. None raises
            BrokenPipeError on the next write to either.

    Yields:
        The replacement of standard output.
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


_HALVES = re.compile("[\ud800-\udfff]")


def valid_text(text: str) -> str:
    """A text with each lone surrogate, which JSON may contain, replaced by the replacement character."""
    return _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)
