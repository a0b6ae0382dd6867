"""What happens to a command when nobody reads on what it prints: ``ragen doctor | head -1``.

Python raises BrokenPipeError then, wherever it happens to write, and libraries make other errors of it. A command that
only prints ends quietly, with ``CLOSED``, as SIGPIPE would end it. One that has work to finish (rows to write, replies
that were paid for) goes on without printing, and ends with the same exit code where all went well; or it stops as
Ctrl-C stops it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

CLOSED = 141
"""Exit code where who read the output wants no more, as a shell tells SIGPIPE."""


class Watched:
    """A stream of text that notices when nobody reads it any more; all else is the stream's own.

    Attributes:
        is_cut: Whether nobody does.
    """

    def __init__(self, stream: Any, on_cut: Callable[[], None] | None = None) -> None:
        """Write to a stream.

        Args:
            stream: Such as ``sys.stdout``.
            on_cut: Called when nobody reads it any more; from then on nothing is written. None raises BrokenPipeError.
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


def printable(text: str) -> str:
    """A text of a stranger's, with the control characters that a terminal would obey as escapes; lines stay."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


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

    Args:
        on_cut: Called when nobody reads standard output any more. None raises BrokenPipeError where either is written;
            else the block goes on in silence.

    Yields:
        What stands for standard output.
    """
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        output = Watched(before[0] or nowhere, on_cut)
        errors = Watched(before[1] or nowhere, None if on_cut is None else _nothing)
        sys.stdout, sys.stderr = output, errors  # type: ignore[assignment]
        try:
            yield output
            output.flush()  # here, where it can still be told
        finally:
            sys.stdout, sys.stderr = before


def _nothing() -> None:
    """What follows where nobody reads errors."""
