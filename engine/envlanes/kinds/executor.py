"""Workers that need nothing but the standard library: one ``ProcessPoolExecutor`` for each.

    main process                                                  worker process
    +---------------------+  submit: one call for each request    +---------------------------+
    | executor -----------+-------------------------------------> | _serve                    |
    |                     |                                       |   _worker_init, once      |
    | _ExecutorHandle     |  requests and replies, socket pair    |   _worker_step_single_env |
    |    Channel ---------+-------------------------------------> |     Channel               |
    |    Progress         | < - - - -  shared memory  - - - - - - |     Progress              |
    +---------------------+                                       +---------------------------+

This is the kind for macOS and Windows. What its order is for:

* Requests and replies take a socket pair, and the executor's queues only calls without arguments. A pipe of a queue has
  no end while the main process holds both of its ends: the executor's threads would wait for ever for the rest of a
  reply that a killed worker has half written, or for a dead worker to read the rest of a request. A call has less than
  the bytes that a pipe takes at once.
* Each executor has a keeper, a thread of its own, which starts the process, waits, and ends both: starting waits for
  the fork server, and ending for the executor's threads.
* A worker is killed by its process id, whatever the standard library believes of it: a process whose fork server has
  died is taken for dead, and computes on. The id is its own as long as its end of the socket pair is open.
* The standard library imports the main script into each worker, so that script needs its usual guard.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures.process import ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any

from envlanes.errors import ConfigError, LaneStartError
from envlanes.temporary import new_folder, remove_tree, temporary_folder
from envlanes.this_process import usable_cpus
from envlanes.workers.channel import PipeHandle
from envlanes.workers.handle import Ending, Message, Position, Progress, WorkerGone, WorkerHandle, WorkerKind
from envlanes.workers.server import _worker_init, _worker_step_single_env

_PATIENCE = 2.0  # seconds for operations that normally take milliseconds
_LOST = 255  # the standard library's exit code where it could not read one from the fork server
_MAX_DESCRIPTORS = 1024  # the usual limit of a process; a worker has just begun, and its descriptors are the lowest
_PRELOADED = ["envlanes.workers.server", "envlanes.episode.host", "numpy"]


class ExecutorKind(WorkerKind):
    """Starts workers as processes of executors.

    Attributes:
        name: ``"executor"``.
        slots: Processors that this process may use.
        start_method: ``"forkserver"`` or ``"spawn"``.
    """

    name = "executor"

    def __init__(self, start_method: str) -> None:
        """Start nothing yet; ``"spawn"`` is taken where there is no ``"forkserver"``.

        Raises:
            ConfigError: This is a worker that is importing the main script.
        """
        # A process of the standard library has its name before it imports the main script, and its parent after that.
        if multiprocessing.current_process().name != "MainProcess" and multiprocessing.parent_process() is None:
            raise ConfigError(
                "backend 'executor': the main script is imported into each worker, so what it starts belongs under "
                "if __name__ == '__main__':"
            )
        available = multiprocessing.get_all_start_methods()
        self.start_method = start_method if start_method in available else "spawn"
        self.slots = usable_cpus()

    def start(self, name: str) -> WorkerHandle:
        """See :meth:`WorkerKind.start`."""
        try:
            return _ExecutorHandle(self.start_method, name)
        except (OSError, RuntimeError, NotImplementedError) as error:
            raise LaneStartError(f"{name}: no worker can be started: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing: executors share nothing but what the standard library keeps until the program ends."""


class _ExecutorHandle(PipeHandle):
    """The worker of one executor; its keeper makes the executor and the process, and closes both."""

    def __init__(self, start_method: str, name: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self._executor: ProcessPoolExecutor | None = None
        self._failure = ""  # reason that the process could not be started
        self._process_id: int | None = None
        self._status: int | None = None  # its exit code
        self._due = 0  # calls that wait for the executor
        self._lock = threading.Lock()  # held where calls come to an executor that has just been made
        self._is_doomed = self._was_asked = False  # to be killed as soon as it is there; to end by itself
        self._is_started, self._may_end, self._has_ended = (threading.Event() for _ in range(3))
        self._context = _Context(start_method)
        memory = self._context.RawArray("b", Progress.SIZE)
        self._progress = Progress(memory)
        keeper = threading.Thread(
            target=self._keep, args=[name, memory, theirs], name=f"envlanes keeps {name}", daemon=True
        )
        self._keeper = keeper
        keeper.start()

    def _keep(self, name: str, memory: Any, theirs: socket.socket) -> None:
        """The whole life of the process, in the keeper's thread."""
        folder, executor = "", None
        context: Any = self._context  # has all that an executor needs of one
        with contextlib.suppress(OSError):  # else it has its temporary files where this process has
            folder = new_folder()
        try:
            with theirs:  # the process has a copy then: the connection ends with it
                if hasattr(signal, "pthread_sigmask"):
                    # The process begins with this mask: Ctrl-C would come before it ignores it, and end it.
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                if context.method == "forkserver":
                    # Without the main script, which is there by default: forks would have its threads, torch's say.
                    context.set_forkserver_preload(_PRELOADED)
                arguments: Any = (), name, memory, folder, theirs
                executor = ProcessPoolExecutor(1, context, initializer=_worker_init, initargs=arguments)
                executor.submit(os.getpid)  # any call starts the process
            with self._lock:
                self._executor = executor
                for _ in range(self._due):
                    executor.submit(_worker_step_single_env)
        except BaseException as error:
            paragraph = str(error).strip().partition("\n\n")[0]  # some of the standard library's give a lesson
            self._failure = f"{type(error).__name__}: {' '.join(paragraph.split())}"
        process = context.process
        self._process_id = process.pid if process is not None else None
        self._is_started.set()
        if self._is_doomed:
            self._kill()
        self._may_end.wait()
        if executor is not None:
            with contextlib.suppress(RuntimeError):  # it has a thread that could not be started
                executor.shutdown()
        if process is not None and process.pid is not None:
            # Only now that no thread of the executor's is left, which reads the status too: it can be read once.
            self._status = process.exitcode
            with contextlib.suppress(ValueError):  # it still runs
                process.close()
        self._has_ended.set()
        remove_tree(folder)

    def send(self, message: Message) -> None:
        """See :meth:`WorkerHandle.send`: for each message a call without arguments, which takes it from the channel."""
        with self._lock:
            if self._executor is None:
                self._due += 1
            else:
                try:
                    self._executor.submit(_worker_step_single_env)
                except RuntimeError as error:  # a broken pool, or an interpreter that is about to end
                    raise WorkerGone(str(error)) from error
        super().send(message)

    def position(self) -> Position | None:
        return self._progress.read()

    def ask_to_exit(self) -> bool:
        self._was_asked = super().ask_to_exit()
        if self._was_asked:
            self._may_end.set()
        return self._was_asked

    def end(self) -> Ending:
        if self.ending is None:
            self._is_doomed = True  # before the look at the event, or a process that starts just now is overlooked
            if self._is_started.wait(_PATIENCE):
                self.ending = self._end_process()
            else:  # the keeper ends it
                self.ending = Ending(error="was still being started by the operating system")
            self._may_end.set()
            self._opened.close()
        return self.ending

    def _end_process(self) -> Ending:
        """Kill the process, and end the executor with its threads; how it ended."""
        if self._process_id is None:
            return Ending(error=f"could not be started: {self._failure}")
        if self._was_asked:  # and its connection has ended, or its time is over
            self._has_ended.wait(_PATIENCE)
        self._kill()
        self._may_end.set()
        if self._has_ended.wait(_PATIENCE):
            self._keeper.join(_PATIENCE)
        else:  # its fork server is stopped; or a fork of a spawned worker lives, and hides its end from the executor
            with contextlib.suppress(ValueError):  # it has ended just now
                self._status = self._context.process.exitcode  # type: ignore[union-attr]
        is_lost = self._status == _LOST and self._context.method == "forkserver"
        return Ending(f"pid {self._process_id}", None if is_lost else self._status, position=self.position())

    def _kill(self) -> None:
        """Kill the process, unless its end of the connection has ended: its id may be another's by now."""
        with contextlib.suppress(WorkerGone):
            while self.receive() is not None:
                pass
            self.pid = self._process_id
            self.kill()


class _Context:
    """A multiprocessing context that knows the process that an executor makes with it."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.process: BaseProcess | None = None
        self._base: Any = multiprocessing.get_context(method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
        """The process that works for the executor: runs :func:`_serve` around what the executor wants it to."""
        self.process = self._base.Process(target=_serve, args=(target, *args))
        return self.process


def _serve(work: Callable[..., None], *arguments: Any) -> None:
    """In the worker: do the executor's work, then end at once, whatever threads the environments have left."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # after it is ignored: its children have both
        if os.name == "posix":
            # Programs that environments start in C would keep descriptors whose end shows main that this process ended.
            for descriptor in range(3, _MAX_DESCRIPTORS):
                with contextlib.suppress(OSError):
                    os.set_inheritable(descriptor, False)
        threading.Thread(target=_end_with_main, name="envlanes lifeline", daemon=True).start()
        work(*arguments)
        code = 0
    except (EOFError, OSError):  # the main process is gone
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
                stream.flush()
        _exit(code)


def _end_with_main() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _exit(1)


def _exit(code: int) -> None:
    remove_tree(temporary_folder())  # this worker's, which the main process removes only if it lives
    os._exit(code)
