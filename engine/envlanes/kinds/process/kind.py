"""Workers that are processes of our own, started and reaped by a supervisor process.

What belongs to whom, and what connects it:

    main process                                          supervisor process
    +--------------------------+     start, end           +--------------------------+
    | ProcessKind              | <----------------------> | Supervisor               |
    |   Launcher               |     how it ended         +--------------------------+
    |   ProcessHandle, ...     |                                | fork, kill, reap
    |     Channel              |     messages             +--------------------------+
    |                          | <----------------------> | worker_main: Worker      |
    |     vitals               | < - -  shared file - - - |   Progress, faulthandler |
    +--------------------------+                          +--------------------------+
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import FileIO
from typing import Any

from envlanes import linux
from envlanes.errors import LaneStartError
from envlanes.kinds.process import supervisor
from envlanes.temporary import new_folder, remove_tree
from envlanes.this_process import OWN, usable_cpus
from envlanes.workers.channel import PipeHandle
from envlanes.workers.handle import Ending, Position, Progress, WorkerKind

END_TIMEOUT = 10.0  # seconds the supervisor may take to end a worker; it needs milliseconds
_TITLES_SPARE_THE_MARK = {"SPT_NOENV": "1"}  # setproctitle would write over the environment that /proc shows
_STACKS_TIMEOUT = 0.3  # seconds; a hundred threads take some 10 ms, and a process that is stopped gives none
_STACKS_SIZE = 1 << 16  # bytes of them that are read


def unavailable() -> str:
    """The reason for having no workers of this kind here, such as ``"it requires Linux, and this is win32"``, or ""."""
    if sys.platform != "linux":
        return f"it requires Linux, and this is {sys.platform}"
    return "" if sys.executable else "the path of the Python interpreter is unknown (sys.executable is empty)"


class ProcessKind(WorkerKind):
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
        self._launcher = self._new_launcher()

    def start(self, name: str) -> ProcessHandle:
        """Begin to start a worker, without waiting for it."""
        with self._lock:
            if not self._launcher.is_alive():
                self._launcher.close()
                self._launcher = self._new_launcher()
            launcher = self._launcher
        try:
            return ProcessHandle(launcher, name)
        except OSError as error:
            raise LaneStartError(f"cannot start {name} ({error}).") from error

    def close(self) -> None:
        """End the supervisor, with all that is left of its workers; bounded in time. A later start starts over."""
        with self._lock:
            self._launcher.close()

    def forget_in_child(self) -> None:
        """In a fork of the main process: let go of the supervisor, which is the parent's."""
        self._lock = threading.RLock()
        self._launcher.forget_in_child()

    def _new_launcher(self) -> Launcher:
        try:
            return Launcher(*self._how)
        except OSError as error:
            text = f"cannot start the supervisor process ({error}); no worker can be started."
            raise LaneStartError(text) from error


class ProcessHandle(PipeHandle):
    """A worker process."""

    def __init__(self, launcher: Launcher, name: str) -> None:
        """Begin to start a worker.

        Raises:
            OSError: It cannot be started.
        """
        self._launcher = launcher
        self._token = secrets.token_hex(8)
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self._opened.enter_context(theirs)
        try:
            # A file for the worker's stacks, which begins with memory that the worker writes its position to.
            self._vitals = self._opened.enter_context(FileIO(os.memfd_create("envlanes"), "r+"))
            self._vitals.truncate(Progress.SIZE)
            self._vitals.seek(Progress.SIZE)  # the worker shares the place that is written to next
            self._progress = Progress(mmap.mmap(self._vitals.fileno(), Progress.SIZE))
            self._opened.callback(delattr, self, "_progress")  # which has a copy of the descriptor
            launcher.start(self._token, name, [theirs.fileno(), self._vitals.fileno()])
            theirs.close()  # at once: while any process has a copy, the worker's end does not show
        except BaseException:
            self._opened.close()
            raise

    def position(self) -> Position | None:
        """The worker's position; once it was ended, its last one."""
        return self._progress.read() if self.ending is None else self.ending.position

    def stacks(self) -> str:
        """The stacks of all threads; a process that cannot even take a signal gives none. Takes 0.3 s at most."""
        if self.pid is None or self.ending is not None:
            return ""
        file = self._vitals.fileno()
        begin = os.fstat(file).st_size
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGUSR2)
        deadline, size = time.monotonic() + _STACKS_TIMEOUT, -1
        while time.monotonic() < deadline and (size <= begin or size != os.fstat(file).st_size):
            # `faulthandler` writes thread by thread, without a mark at the end: it is done if the size has not changed
            # for a while. A longer pause cuts the stacks off.
            size = os.fstat(file).st_size
            time.sleep(0.02)
        return os.pread(file, _STACKS_SIZE, begin).decode(errors="replace")

    def end(self) -> Ending:
        """Kill the worker, if it lives, and what it started as far as that is known; bounded in time."""
        if self.ending is None:
            ending = self._launcher.end(self._token, self.is_up)
            if ending.status is not None:
                ending = replace(ending, position=self._progress.read())  # only now that it cannot move any more
            self.ending = replace(ending, where=ending.where or self.where)
            self._opened.close()
        return self.ending


class Launcher:
    """Starts and ends workers through a supervisor process; see :mod:`envlanes.kinds.process.supervisor`."""

    def __init__(self, method: str, preload: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the supervisor; see :class:`ProcessKind`.

        Raises:
            OSError: It cannot be started.
        """
        self._lock = threading.RLock()  # the garbage collector may end a worker while one is being started or ended
        self._mark = secrets.token_hex(8)
        self._folder = ""
        with contextlib.suppress(OSError):  # else workers have their temporary files where this process has
            self._folder = new_folder()
        preload = [] if method == "spawn" else [supervisor.WORKER_MODULE, *preload]
        arguments = {"parent": os.getpid(), "folder": self._folder, "method": method, "preload": preload}
        own = {**environ, supervisor.MARK: self._mark, **_TITLES_SPARE_THE_MARK}
        self._commands, theirs = socket.socketpair()
        self._commands.settimeout(END_TIMEOUT)
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.enter_context(self._commands)
            unless_started.callback(remove_tree, self._folder)
            self._process = subprocess.Popen(
                supervisor.command_line(supervisor.__name__, {"commands": theirs.fileno(), **arguments}),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **own, OWN: " ".join([OWN, *own])},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt from the terminal goes to the main process alone
            )
            unless_started.pop_all()
        # Without a buffer, whose lock another thread may hold as this process forks.
        self._answers = self._commands.makefile("rb", buffering=0)

    def is_alive(self) -> bool:
        """Whether this launcher can still start workers."""
        return self._process.poll() is None

    def start(self, token: str, name: str, descriptors: list[int]) -> None:
        """Ask the supervisor to start a worker, without waiting. Tokens are never reused. Its first message is its pid.

        ``descriptors`` are its connection and its vitals.

        Raises:
            OSError: The supervisor lives, but the command cannot be sent.
        """
        command = {"do": "start", "token": token, "worker": name}
        # A dead supervisor shows as a worker that never says hello, and its end gives the reason.
        with self._lock, contextlib.suppress(ConnectionError):
            socket.send_fds(self._commands, [json.dumps(command).encode() + b"\n"], descriptors)

    def end(self, token: str, was_up: bool) -> Ending:
        """End a worker if it lives, with all it left behind as far as that is known; how it ended. Bounded in time."""
        with self._lock:
            try:
                answer = self._ask({"do": "end", "token": token})
            except (OSError, ValueError) as error:  # of half an answer
                # Its sockets are closed a little before it has ended; one that does not answer is killed.
                self._await_end(0.0 if isinstance(error, TimeoutError) else 1.0)
                how = Ending(status=self._process.poll()).describe()
                if was_up:
                    return Ending(error=f"ended with its supervisor process, which {how}")
                return Ending(error=f"could not be started (the supervisor process {how})")
        if answer["pid"] is None:
            return Ending(
                error=f"could not be started ({answer['error'] or 'the supervisor was not asked to start it'})"
            )
        return Ending(f"pid {answer['pid']}", answer["status"])

    def close(self) -> None:
        """End every worker and the supervisor, and whatever is left of them. Bounded."""
        try:
            self._commands.shutdown(socket.SHUT_WR)  # a fork of this process may hold a copy of the descriptor
            while self._commands.recv(4096):  # until it is done, which takes milliseconds
                pass
        # Before OSError, of which it is a subclass.
        except TimeoutError:
            self._process.kill()
        except OSError:  # it has ended, or this was closed before
            pass
        self._let_go()
        self._await_end(END_TIMEOUT)
        # Its own sweep is done if it says so; one that was killed, or gave up, has left what carries its mark.
        if self._process.returncode != 0:
            linux.kill_all_with(f"{supervisor.MARK}={self._mark}")
        remove_tree(self._folder)

    def forget_in_child(self) -> None:
        """In a fork of the main process: let go of the socket, so that the supervisor sees the main process end."""
        self._lock = threading.RLock()
        self._let_go()
        self._process.returncode = 0  # not this process's child: nothing to wait for, to kill or warn about
        self._folder = ""

    def _let_go(self) -> None:
        self._answers.close()  # it has the descriptor too
        self._commands.close()

    def _ask(self, command: dict[str, Any]) -> Any:
        """Send a command and wait for its answer.

        Raises:
            OSError: The supervisor has ended, or does not answer in time.
        """
        self._commands.sendall(json.dumps(command).encode() + b"\n")
        for line in self._answers:
            if (answer := json.loads(line))["token"] == command["token"]:
                return answer
        raise ConnectionError("the supervisor closed its socket")

    def _await_end(self, patience: float) -> None:
        """Wait for the supervisor's end so many seconds, then kill it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT)
