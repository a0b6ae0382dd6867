"""The supervisor: a small process that starts the workers, and sees to it that nothing of them is left.

The main process starts one supervisor for each start method in use, in a session of its own, and sends it commands
over a socket, one JSON line each:

    {"do": "start", "token": "7f3a", "worker": "worker 0"} + the worker's two descriptors
    {"do": "end", "token": "7f3a"}               -> {"token": "7f3a", "pid": 4242, "status": -9, "error": ""}

``start`` is not answered: the worker says hello itself. ``end`` kills the worker if it lives, with its process group
and its descendants, and reports how it ended. Why not the standard library's fork server: that one is shared with
whatever else uses ``multiprocessing`` in the process, stays until the process ends, imports the user's main script into
every worker, swallows failing preloads, and leaves the grandchildren of a killed worker behind.

The supervisor is a fresh interpreter, and its workers are forks of it (``forkserver``) or fresh interpreters again
(``spawn``). Why not forks of the main process: those would hold copies of each other's sockets, so that the end of a
worker goes unseen; what they leave behind would become the children of ``init``, where it is never found; and the main
process must not adopt other people's orphans.

Who ends whom:

    main process ends (even by SIGKILL)       -> end of the command socket -> the supervisor ends all workers and exits
    supervisor ends (even by SIGKILL)         -> the kernel kills the workers (parent-death signal)
    a worker is ended                         -> its process group, and its descendants as they were then, are killed
    a worker ends by itself                   -> its process group is killed
    a worker's end is asked for               -> what it started in other groups is killed, its temporary files removed
    the supervisor ends with its work done    -> whatever else workers left is killed: it has adopted their orphans
    the supervisor is found dead              -> the main process kills what carries the supervisor's mark

The mark is a variable of the environment, which the supervisor is started with and every descendant inherits; its value
is random, so that no two supervisors share one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from envlanes import linux
from envlanes.episode import program
from envlanes.temporary import remove_tree
from envlanes.this_process import set_title

MARK = "ENVLANES_SUPERVISOR"  # environment variable of the supervisor and all its descendants
WORKER_MARK = "ENVLANES_WORKER"  # environment variable of what a worker has started: the worker's token
DESCRIPTORS = 2  # connection, vitals
WORKER_MODULE = "envlanes.kinds.process.worker_main"  # imported late: the main process has no need of it
_SWEEP_TIMEOUT = 2.0  # seconds to kill what workers left, which could go on starting processes for ever

_BOOT = """
import json, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments["path"]
from importlib import import_module
import_module(arguments["module"]).main(arguments)
"""


def command_line(module: str, arguments: dict[str, Any]) -> list[str]:
    """A fresh interpreter that runs ``main(arguments)`` of a module, with this process's import path."""
    given = {"path": sys.path, "module": module, **arguments}
    return [sys.executable, "-c", _BOOT, json.dumps(given)]


@dataclass
class _Worker:
    pid: int | None = None
    status: int | None = None
    error: str = ""  # reason that there is none
    folder: str = ""  # for its temporary files


class Supervisor:
    """The loop: commands from the main process, ends of children."""

    def __init__(self, commands: socket.socket, arguments: dict[str, Any]) -> None:
        self._commands = commands
        self._parent, self._method = arguments["parent"], arguments["method"]
        self._folder = arguments["folder"]
        self._numbers = itertools.count()
        self._pid = os.getpid()
        self._workers: dict[str, _Worker] = {}
        self._buffer = b""
        self._descriptors: list[int] = []
        self._wake, self._wake_end = socket.socketpair()
        self._wake.setblocking(False)
        self._wake_end.setblocking(False)
        # A handler that does nothing: Python writes to the wake-up descriptor only for signals that have one, and the
        # default, which ignores SIGCHLD, would never end a poll.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the main process says so or is gone, then end every child."""
        poll = select.poll()
        poll.register(self._commands, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        try:
            # The end of the connection may never show: a fork of the main process may hold a copy of its other end. So
            # the parent is looked at as well, once a second.
            while os.getppid() == self._parent:
                ready = {descriptor for descriptor, _ in poll.poll(1000)}
                if self._wake.fileno() in ready:
                    self._wake.recv(4096)
                self._reap()
                if self._commands.fileno() in ready and not self._obey():
                    return
        finally:
            self._end_all()
            remove_tree(self._folder)
            self._let_go()

    def _obey(self) -> bool:
        """Read and carry out commands; False once the main process is gone."""
        try:
            # The kernel never merges two messages that carry descriptors: a read brings those of one command at most,
            # so that they fit, and belong to the first commands that lack them.
            data, descriptors, _, _ = socket.recv_fds(self._commands, 1 << 16, 64)
        except ConnectionError:
            return False
        if not data:
            return False
        self._descriptors += descriptors
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "start":
                self._start(command["token"], command["worker"])
            else:
                self._reply(self._end(command["token"]))
        return True

    def _start(self, token: str, name: str) -> None:
        descriptors, self._descriptors = self._descriptors[:DESCRIPTORS], self._descriptors[DESCRIPTORS:]
        folder = os.path.join(self._folder, str(next(self._numbers))) if self._folder else ""
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker({"worker": name, "token": token, "folder": folder, "descriptors": descriptors})
            self._workers[token] = _Worker(pid, folder=folder)
        except OSError as error:
            self._workers[token] = _Worker(error=f"{type(error).__name__}: {error}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _become_worker(self, arguments: dict[str, Any]) -> None:
        """In the new child: leave the supervisor's things behind, serve, and never return."""
        try:
            linux.die_with_parent(self._pid)  # first: from here on nothing can leave this process alone
            # A group of its own, with which everything is killed that it starts and that stays in it.
            os.setsid()
            # Before any code of a user's: a worker with a copy of the command socket would hide the main process's end.
            self._let_go()
            if self._method == "spawn":
                for descriptor in arguments["descriptors"]:
                    os.set_inheritable(descriptor, True)
                # The setting to die with the parent, and the group, survive the exec.
                line = command_line(WORKER_MODULE, arguments)
                os.execv(line[0], line)
            import_module(WORKER_MODULE).main(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _end(self, token: str) -> dict[str, Any]:
        worker = self._workers.get(token, _Worker())
        self._reap()  # a worker that has ended by itself keeps its own status, and not that of a kill
        if worker.pid is not None and worker.status is None:
            # Before the kill: after it, its children are this process's, and nothing says whose they were. One that is
            # forked in between is found by its mark, below.
            family = linux.descendants(worker.pid)
            _kill(worker.pid)
            self._wait_for(worker.pid)
            while left := family.intersection(linux.children()):  # orphans now, whose own children are adopted next
                self._kill_all(left)
        workers = {each.pid for each in self._workers.values()}
        mark = f"{WORKER_MARK}={token}"  # of what had left its process group before it ended
        while left := {pid for pid in linux.children() if pid not in workers and linux.has_in_environment(pid, mark)}:
            self._kill_all(left)
        remove_tree(worker.folder)
        self._workers.pop(token, None)
        return {"token": token, "pid": worker.pid, "status": worker.status, "error": worker.error}

    def _kill_all(self, children: set[int]) -> None:
        for pid in children:
            _kill(pid)
            self._wait_for(pid)

    def _reap(self) -> None:
        """Take note of the children that have ended: workers, and orphans of theirs."""
        with contextlib.suppress(ChildProcessError):
            # Without WNOWAIT this look would take the status, and free the id before `_wait_for` uses it.
            while (first := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                self._wait_for(first.si_pid)

    def _wait_for(self, pid: int) -> None:
        """Wait for a child's end, and kill a worker's group while its id is still its own.

        Until its parent takes its status, a process that has ended keeps its id, and no other process or group can get
        it. Once that is taken, and no member of its group is left, the next process may have both.
        """
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            ended = [each for each in self._workers.values() if each.pid == pid and each.status is None]
            if ended:
                _kill_group(pid)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            for worker in ended:
                worker.status = status

    def _end_all(self) -> None:
        for token in list(self._workers):
            self._end(token)
        deadline = time.monotonic() + _SWEEP_TIMEOUT
        while (left := linux.children()) and time.monotonic() < deadline:
            for pid in left:
                _kill(pid)
            time.sleep(0.001)  # a killed process takes a moment to end
            self._reap()

    def _let_go(self) -> None:
        # First: a signal that came after the ends are closed would be written to whatever has their numbers.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._commands, self._wake, self._wake_end):
            end.close()
        for descriptor in self._descriptors:  # of workers that are still to be started
            os.close(descriptor)

    def _reply(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._commands.sendall(json.dumps(answer).encode() + b"\n")


def _kill(pid: int) -> None:
    """Kill a child that was not waited for yet, so that its id is still its own, and its process group."""
    _kill_group(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main(arguments: dict[str, Any]) -> None:
    """Entry point of the supervisor's interpreter.

    Args:
        arguments: ``commands``, the socket's descriptor; ``parent``, the main process's id; ``method``, how workers
            are started; ``folder``, for temporary files; ``preload``, modules that every fork needs, imported once for
            all of them. One that cannot be imported is left to the workers, which report it with the environment that
            wanted it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that started this process may have blocked some
    set_title("envlanes supervisor")
    program.in_worker = True  # for modules that are imported below: they prepare workers, and start none
    linux.adopt_orphans()
    commands = socket.socket(fileno=arguments["commands"])
    # The main process shares the socket's flags: a default timeout there makes it non-blocking here too.
    commands.settimeout(None)
    for module in arguments["preload"]:
        with contextlib.suppress(Exception):  # it raises again in the worker that needs it
            import_module(module)
    Supervisor(commands, arguments).run()
    os._exit(0)  # the main process waits; there is nothing to clean up
