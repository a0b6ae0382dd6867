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
    """Memory that the worker writes its position to, and a file for its stacks."""

    def __init__(self) -> None:
        """Open both.

        Raises:
            OSError: There can be no more descriptors.
        """
        self._open = contextlib.ExitStack()
        self._theirs = contextlib.ExitStack()
        try:
            self._shared = linux.anonymous_file("ragen-progress")
            self._theirs.callback(os.close, self._shared)
            os.ftruncate(self._shared, Progress.SIZE)
            self._progress = Progress(self._open.enter_context(mmap.mmap(self._shared, Progress.SIZE)))
            self._open.callback(self._progress.close)
            self._stacks = self._open.enter_context(FileIO(linux.anonymous_file("ragen-stacks")))
        except BaseException:
            self.handed_over()
            self._open.close()
            raise

    def descriptors(self) -> list[int]:
        """What the worker needs of it: the memory's descriptor and the file's, until :meth:`handed_over`."""
        return [self._shared, self._stacks.fileno()]

    def handed_over(self) -> None:
        """The worker has its descriptors: close what is not needed here."""
        self._theirs.close()

    def position(self) -> Position:
        """Where the worker is."""
        return self._progress.read()

    def stacks(self, pid: int) -> str:
        """The stacks of all threads; a process that cannot even take a signal gives none. Takes 0.3 s at most."""
        begin = os.fstat(self._stacks.fileno()).st_size
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)
        deadline, size = time.monotonic() + _STACKS_TIMEOUT, -1
        while time.monotonic() < deadline and (size <= begin or size != os.fstat(self._stacks.fileno()).st_size):
            size = os.fstat(self._stacks.fileno()).st_size
            time.sleep(0.02)
        return os.pread(self._stacks.fileno(), _STACKS_SIZE, begin).decode(errors="replace")

    def close(self) -> None:
        """Let go of both."""
        self.handed_over()
        self._open.close()
