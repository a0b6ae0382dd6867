"""What a worker process shares with whoever watches it: where it is in its work, and the stacks of its threads."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from io import FileIO

from ragen.parallel.lanes.handle import Position
from ragen.parallel.lanes.progress import Progress
from ragen.parallel.process import linux

_STACKS_TIMEOUT = 0.3  # seconds
_STACKS_SIZE = 1 << 16  # bytes of them that are read


class Vitals:
    """A file for the worker's stacks, which begins with memory that the worker writes its position to."""

    def __init__(self) -> None:
        """Open it.

        Raises:
            OSError: There can be no more descriptors.
        """
        with contextlib.ExitStack() as opened:
            self._file = opened.enter_context(FileIO(linux.anonymous_file(), "r+"))
            self._file.truncate(Progress.SIZE)
            self._file.seek(Progress.SIZE)  # the worker shares the place that is written to next
            self._progress = Progress(opened.enter_context(mmap.mmap(self._file.fileno(), Progress.SIZE)))
            opened.callback(self._progress.close)
            self._opened = opened.pop_all()

    def fileno(self) -> int:
        """The descriptor that the worker needs."""
        return self._file.fileno()

    def position(self) -> Position:
        """Where the worker is."""
        return self._progress.read()

    def stacks(self, pid: int) -> str:
        """The stacks of all threads; a process that cannot even take a signal gives none. Takes 0.3 s at most."""
        begin = os.fstat(self.fileno()).st_size
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)
        deadline, size = time.monotonic() + _STACKS_TIMEOUT, -1
        while time.monotonic() < deadline and (size <= begin or size != os.fstat(self.fileno()).st_size):
            size = os.fstat(self.fileno()).st_size
            time.sleep(0.02)
        return os.pread(self.fileno(), _STACKS_SIZE, begin).decode(errors="replace")

    def close(self) -> None:
        """Let go of it."""
        self._opened.close()
