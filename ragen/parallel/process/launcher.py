"""How a worker process comes to be and how it is ended: through a supervisor process, whichever the start method."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ragen.parallel.lanes.handle import Ending
from ragen.parallel.process import linux, supervisor
from ragen.resources import TemporaryFolder

END_TIMEOUT = 10.0  # seconds the supervisor may take to end a worker; it needs milliseconds
_TITLES_SPARE_THE_MARK = {"SPT_NOENV": "1"}  # setproctitle would write over the environment that /proc shows


class Launcher:
    """Starts and ends workers through a supervisor process; see :mod:`ragen.parallel.process.supervisor`."""

    def __init__(self, method: str, preload: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the supervisor; see :class:`~ragen.parallel.process.kind.ProcessKind`.

        Raises:
            OSError: It cannot be started.
        """
        self._lock = threading.RLock()  # the garbage collector may end a lane while one is being started or ended
        self._buffer = b""
        self._answers: dict[str, dict[str, Any]] = {}
        self._gave_up = False
        self._mark = secrets.token_hex(8)
        self._folder: TemporaryFolder | None = None
        with contextlib.suppress(OSError):  # else workers have their temporary files where this process has
            self._folder = TemporaryFolder()
        lock = self._folder.fileno() if self._folder is not None else None
        preload = [] if method == "spawn" else [supervisor.WORKER_MODULE, *preload]
        arguments = {"parent": os.getpid(), "method": method, "preload": preload, "lock": lock}
        arguments["folder"] = str(self._folder.path) if self._folder is not None else ""
        self._commands, theirs = socket.socketpair()
        self._commands.settimeout(END_TIMEOUT)
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.enter_context(self._commands)
            unless_started.callback(self._remove_folder)
            self._process = subprocess.Popen(
                supervisor.command_line(supervisor.__name__, {"commands": theirs.fileno(), **arguments}),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environ, supervisor.MARK: self._mark, **_TITLES_SPARE_THE_MARK},
                pass_fds=[theirs.fileno(), *([lock] if lock is not None else [])],
                start_new_session=True,  # an interrupt from the terminal goes to the main process alone
            )
            unless_started.pop_all()
        if self._folder is not None:
            self._folder.let_go()  # the supervisor holds its lock from now on, and its watcher

    def is_alive(self) -> bool:
        """Whether this launcher can still start workers."""
        return self._process.poll() is None

    def start(self, token: str, lane: str, descriptors: list[int]) -> None:
        """Begin to start a worker, which no other ever shares its token with; it says hello when it is there.

        ``descriptors`` are its connection and its vitals.

        Raises:
            OSError: It cannot be told to the supervisor, though that lives.
        """
        command = {"do": "start", "token": token, "lane": lane}
        # A dead supervisor shows as a worker that never says hello, and its end tells more.
        with self._lock, contextlib.suppress(ConnectionError):
            socket.send_fds(self._commands, [json.dumps(command).encode() + b"\n"], descriptors)

    def end(self, token: str, was_up: bool) -> Ending:
        """End a worker if it lives, with all it left behind as far as that is known; how it ended. Bounded in time."""
        with self._lock:
            answer = self._ask({"do": "end", "token": token})
        if answer is None:
            how = self._describe_end()
            return Ending(
                error=f"ended with its supervisor process, which {how}"
                if was_up
                else f"could not be started (the supervisor process {how})"
            )
        if answer["pid"] is None:
            return Ending(error=f"could not be started ({answer['error'] or 'the supervisor was not told to'})")
        return Ending(f"pid {answer['pid']}", answer["status"])

    def close(self) -> None:
        """End every worker and the supervisor, and whatever is left of them. Bounded."""
        try:
            self._commands.shutdown(socket.SHUT_WR)  # a fork of this process may hold a copy of the descriptor
            while self._commands.recv(4096):  # until it is done, which takes milliseconds
                pass
        except TimeoutError:
            self._process.kill()
        except OSError:  # it has ended, or this was closed before
            pass
        self._commands.close()
        self._await_end(END_TIMEOUT)
        if self._process.returncode != 0:
            linux.kill_all_with(f"{supervisor.MARK}={self._mark}")
        self._remove_folder()

    def forget_in_child(self) -> None:
        """In a fork of the main process: let go of the socket, so that the supervisor sees the main process end."""
        self._lock = threading.RLock()
        self._commands.close()
        self._process.returncode = 0  # not this process's child: nothing to wait for, to kill or warn about

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any] | None:
        """Send a command and wait for its answer; None, and the supervisor killed, if none comes."""
        deadline = time.monotonic() + END_TIMEOUT
        try:
            self._commands.settimeout(END_TIMEOUT)
            self._commands.sendall(json.dumps(command).encode() + b"\n")
            while command["token"] not in self._answers:
                self._commands.settimeout(max(0.001, deadline - time.monotonic()))
                received = self._commands.recv(4096)
                if not received:
                    raise ConnectionError("the supervisor closed its socket")
                *lines, self._buffer = (self._buffer + received).split(b"\n")
                self._answers.update({answer["token"]: answer for answer in map(json.loads, lines)})
        except OSError as error:
            self._gave_up |= isinstance(error, TimeoutError)
            self._await_end(0.0 if self._gave_up else 1.0)  # its sockets are closed a little before it has ended
            return None
        return self._answers.pop(command["token"])

    def _await_end(self, patience: float) -> None:
        """Wait for the supervisor's end so many seconds, then kill it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT)

    def _describe_end(self) -> str:
        if self._gave_up:
            return f"did not answer within {END_TIMEOUT:g} s and was killed"
        return Ending(status=self._process.poll()).describe()
