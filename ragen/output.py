"""Output of commands: texts that are safe for a terminal, addresses without secrets, tables, closed output."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ragen.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console
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


def print_table(console: Console, table: Table) -> None:
    """Print a table; in a terminal that is too narrow for its numbers, its lines wrap."""
    width = console.width
    if all(column.no_wrap for column in table.columns[1:]):
        unbounded = console.options.update(width=_UNBOUNDED)
        width = max(width, console.measure(table, options=unbounded).maximum)
    console.print(table, width=width, crop=False)


class PrintableFormatter(logging.Formatter):
    """Formats log records safely for a terminal; see :func:`printable`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, its traceback included."""
        return printable(super().format(record))


@contextlib.contextmanager
def command_output() -> Iterator[None]:
    """Handle the output of a command within the block.

    Log records that reach standard error because logging is not configured are :func:`printable`. A stream that was
    closed before the start (``>&-``), for which Python has None, discards everything.

    Raises:
        SystemExit: With ``CLOSED``, once the output has no reader. A command with rows to write can be resumed.
    """
    before = sys.stdout, sys.stderr
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout, sys.stderr = before[0] or nowhere, before[1] or nowhere
        try:
            yield
            sys.stdout.flush()  # here, where a full disk can still be reported
        except BrokenPipeError:
            for stream in (sys.stdout, sys.stderr):  # or Python would write what is left at its end, and complain
                with contextlib.suppress(OSError):  # io.UnsupportedOperation of a stream without a descriptor
                    os.dup2(nowhere.fileno(), stream.fileno())
            raise SystemExit(CLOSED) from None
        finally:
            sys.stdout, sys.stderr = before
