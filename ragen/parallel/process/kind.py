"""Workers that are processes of our own, started and reaped by a supervisor process.

What belongs to whom, and what connects it:

    main process                                          supervisor process
    +--------------------------+     start, end           +--------------------------+
    | ProcessKind              | <----------------------> | Supervisor               |
    |   Launcher               |     how it ended         +--------------------------+
    |   ProcessHandle, ...     |                                | fork, kill, reap
    |     Channel              |     messages             +--------------------------+
    |                          | <----------------------> | worker_main: Worker      |
    |     Vitals               | < - -  shared file - - - |   Progress, faulthandler |
    +--------------------------+                          +--------------------------+
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ragen.errors import LaneStartError
from ragen.parallel.lanes import codec
from ragen.parallel.lanes.handle import Ending, LaneKind, Message, Position, WorkerGone, WorkerHandle
from ragen.parallel.process.channel import Channel, next_reply
from ragen.parallel.process.launcher import Launcher
from ragen.parallel.process.vitals import Vitals
from ragen.parallel.this_process import usable_cpus


def unavailable() -> str:
    """Why there can be no workers of this kind here, such as ``"there is no os.fork on win32"``; "" if there can."""
    if sys.platform not in ("linux", "darwin"):
        return f"it is for Linux and macOS, and this is {sys.platform}"
    if not sys.executable:
        return "it is not known which program is the Python interpreter (sys.executable is empty)"
    needed = [(os, "fork"), (socket, "send_fds"), (socket, "recv_fds"), (socket, "socketpair"), (signal, "SIGUSR2")]
    missing = [f"{module.__name__}.{name}" for module, name in needed if not hasattr(module, name)]
    return f"this Python has no {' and no '.join(missing)}" if missing else ""


class ProcessHandle(WorkerHandle):
    """A worker process."""

    def __init__(self, launcher: Launcher, lane: str, known: weakref.WeakSet[ProcessHandle]) -> None:
        """Begin to start a worker.

        ``known`` takes the handle in before it opens anything: a fork of the main process forgets what is in it.

        Raises:
            OSError: It cannot be started.
        """
        self._launcher = launcher
        self._token = secrets.token_hex(8)
        self._ending: Ending | None = None
        self._opened = contextlib.ExitStack()  # what is to be closed
        known.add(self)
        try:
            ours, theirs = map(self._opened.enter_context, socket.socketpair())
            ours.setblocking(False)
            self._channel = Channel(ours)
            self._vitals = Vitals()
            self._opened.callback(self._vitals.close)
            launcher.start(self._token, lane, [theirs.fileno(), self._vitals.fileno()])
            theirs.close()
        except BaseException:
            self._opened.close()
            raise

    def send(self, message: Message) -> None:
        """Begin to send a message; never waits."""
        try:
            self._channel.send(message)
        except OSError as error:
            with contextlib.suppress(WorkerGone):
                next_reply(self, self._channel)  # its hello, if that was not read yet
            raise WorkerGone(str(error)) from None
        finally:
            self.moved = self._channel.moved

    def fileno(self) -> int:
        """The connection's descriptor; -1 once the worker was ended."""
        return self._channel.fileno()

    def unsent(self) -> bool:
        """Whether part of a message is still here."""
        return self._channel.is_sending()

    def receive(self) -> Message | None:
        """Go on sending what is unsent, and take the next reply if it is complete; None if not. Never waits."""
        return next_reply(self, self._channel)

    def position(self) -> Position | None:
        """Where the worker is; once it was ended, where it was in the end."""
        return self._vitals.position() if self._ending is None else self._ending.position

    def stacks(self) -> str:
        """The stacks of all threads; a process that cannot even take a signal gives none. Takes 0.3 s at most."""
        if self.pid is None or self._ending is not None:
            return ""
        return self._vitals.stacks(self.pid)

    def ask_to_exit(self) -> bool:
        """Ask the worker to close its environments and end, which shows as an end of the connection."""
        return codec.ask_to_exit(self)

    def end(self) -> Ending:
        """Kill the worker, if it lives, and what it started as far as that is known; bounded in time."""
        if self._ending is None:
            ending = self._launcher.end(self._token, self.is_up)
            if ending.status is not None:
                ending = replace(ending, position=self._vitals.position())  # only now that it cannot move any more
            elif self.pid is not None and sys.platform != "linux":  # where nobody kills it in the supervisor's place
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._ending = replace(ending, where=ending.where or self.where)
            self._opened.close()
        return self._ending

    def forget_in_child(self) -> None:
        """In a fork of the main process: let go of both ends of the connection; the worker is the parent's."""
        self._ending = self._ending or Ending(error="belongs to the process that this one is a fork of")
        self._opened.close()


class ProcessKind(LaneKind):
    """Starts worker processes through a supervisor, which is started at once, and anew if it has died."""

    name = "process"

    def __init__(self, start_method: str, preload: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start the supervisor, without waiting for it.

        Args:
            start_method: ``"forkserver"`` (workers are forks of the supervisor) or ``"spawn"`` (fresh interpreters).
            preload: Modules that workers will need, imported once for all forks.
            environ: Environment variables that workers see, beside those of this process.

        Raises:
            LaneStartError: It cannot be started.
        """
        self.slots = usable_cpus()
        self._how = start_method, list(preload), dict(environ or {})
        self._lock = threading.RLock()
        self._known: weakref.WeakSet[ProcessHandle] = weakref.WeakSet()
        self._launcher = self._new_launcher()

    def start(self, lane: str, first: Message | None = None) -> ProcessHandle:
        """Begin to start a worker, without waiting for it."""
        with self._lock:
            if not self._launcher.is_alive():
                self._launcher.close()
                self._launcher = self._new_launcher()
            launcher = self._launcher
        try:
            handle = ProcessHandle(launcher, lane, self._known)
        except OSError as error:
            raise LaneStartError(f"cannot start the worker of {lane} ({error}).") from error
        if first is not None:
            with contextlib.suppress(WorkerGone):  # receive() says so
                handle.send(first)
        return handle

    def close(self) -> None:
        """End the supervisor, with all that is left of its workers; bounded in time. A later start begins anew."""
        with self._lock:
            self._launcher.close()

    def forget_in_child(self) -> None:
        """In a fork of the main process: let go of the supervisor and of all workers, which are the parent's."""
        self._lock = threading.RLock()
        for handle in list(self._known):
            handle.forget_in_child()
        self._launcher.forget_in_child()

    def _new_launcher(self) -> Launcher:
        try:
            return Launcher(*self._how)
        except OSError as error:
            text = f"cannot start the supervisor process ({error}); no worker can be started."
            raise LaneStartError(text) from error
