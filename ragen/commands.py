"""Shared behavior of commands: error messages, and a graceful stop by Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from shutil import get_terminal_size
from textwrap import fill
from types import FrameType
from typing import Any, NoReturn, ParamSpec

from ragen.errors import EnvError, RagenError, did_you_mean

P = ParamSpec("P")

FAILED, REFUSED, STOPPED = 1, 2, 130
"""Exit codes: failure, invalid arguments, Ctrl-C."""
_NARROWEST = 20  # characters of a column of text
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CommandParser(ArgumentParser):
    """An ``ArgumentParser`` that suggests similar options, and takes none for another that begins like it.

    Attributes:
        examples: Command lines, shown at the end of the help, each in a line of its own to be copied whole.
        settings: Returns the keys that are given as ``key=value``, which are suggested too.
    """

    settings: Callable[[], Iterable[str]] = staticmethod(list)

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        """Create the parser.

        Args:
            *args: Those of ``ArgumentParser``.
            examples: See the class.
            **options: Those of ``ArgumentParser``.
        """
        super().__init__(*args, **{"allow_abbrev": False, **options})
        self.examples = examples

    def format_help(self) -> str:
        """The help, with the examples."""
        listed = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nExamples:\n{listed}" if listed else "")

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with 2."""
        _, is_unknown, words = message.partition("unrecognized arguments: ")
        meant = [self._meant(word) for word in words.split() if is_unknown and word.startswith("-")]
        if any(meant):
            message += f".{''.join(meant)}"
        super().error(message)

    def _meant(self, word: str) -> str:
        """A suggestion: an option, or the ``key=value`` with its name."""
        name, _, value = word.partition("=")
        options = {option: option for action in self._actions for option in action.option_strings}
        for key in self.settings():
            options.setdefault(f"--{key.rpartition('.')[2].replace('_', '-')}", f"{key}={value or 'VALUE'}")
        return did_you_mean(name.replace("_", "-"), options, options.__getitem__)


def positive(text: str) -> int:
    """The ``type`` of an argument that is a number of at least 1."""
    if (number := int(text)) < 1:
        raise ArgumentTypeError(f"{text}: expected a number of at least 1")
    return number


def beside(lead: str, text: str) -> str:
    """A text behind some columns, whose further lines begin below its first one in a narrow terminal."""
    if not sys.stdout.isatty():
        return lead + text
    width = max(get_terminal_size().columns, len(lead) + _NARROWEST)
    below = " " * len(lead)
    return fill(
        text,
        width,
        initial_indent=lead,
        subsequent_indent=below,
        break_on_hyphens=False,
        break_long_words=False,  # so that a path can be copied
    )


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600:d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def refusing(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a command to print a ``RagenError`` as a line on standard error.

    It then returns ``FAILED`` for an environment that failed in its own code, and ``REFUSED`` for anything else.
    """

    @wraps(main)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except RagenError as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED if isinstance(error, EnvError) else REFUSED

    return wrapped


def command(
    parser: Callable[[str], ArgumentParser], prog: str
) -> Callable[[Callable[[Namespace, str], int]], Callable[..., int]]:
    """Make a command's ``main`` from a function that does the work, and that imports its dependencies.

    Help, completions and misspelled options therefore import nothing, and errors look alike. For commands with a
    configuration, use :func:`ragen.config.command_line.main_of`.

    Args:
        parser: Creates the parser for a program name.
        prog: The program's name.

    Returns:
        A decorator of functions that take the parsed options and the program's name, and return the exit code. The
        decorated one is called ``main(argv=None, prog=prog)``; None takes the process's own arguments.
    """

    def decorated(run: Callable[[Namespace, str], int]) -> Callable[..., int]:
        @refusing
        @wraps(run)
        def main(argv: Sequence[str] | None = None, prog: str = prog) -> int:
            return run(parser(prog).parse_intermixed_args(argv), prog)

        return main

    return decorated


class StopRequest:
    """A context manager in which the first SIGINT or SIGTERM sets ``wanted``, and the next raises KeyboardInterrupt.

    It has no effect outside the main thread, since only that one handles signals.

    Attributes:
        wanted: Whether a stop was requested.
    """

    def __init__(self) -> None:
        """Begin without a request."""
        self.wanted = False
        self._before: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
