"""Workers that need nothing but the standard library: one ``ProcessPoolExecutor`` for each.

    main process                                                  worker process
    +---------------------+  submit: a whole request at a time    +---------------------------+
    | _ExecutorHandle ----+-------------------------------------> | _process_worker           |
    |    ^                |  call queue, result queue             |   _worker_init, once:     |
    |    | wakes          | <------------------------------------ |     the first request     |
    | executor's thread   |                                       |   _worker_step_single_env |
    |                     |  position, in shared memory           |                           |
    | Progress            | < - - - - - - - - - - - - - - - - - - | Progress                  |
    |                     |  lifeline: closed when main is gone   |                           |
    | _lifeline ----------+-------------------------------------> | thread: exits, or tells   |
    +---------------------+                                       |   where the others stand  |
                                                                  +---------------------------+

This is the kind for macOS, Windows, and containers without ``/proc``. What it is careful about:

* The executor is made and its process started in a thread of its own, which ends with the start: starting waits for the
  fork server, and for a young interpreter to read its first request if that is a large one.
* The main script is not imported into workers, as the standard library would: it need not be guarded by
  ``if __name__ == "__main__":``, and what it imports, such as torch, stays out of them.
* A pipe ends when no process holds its other end. So the main process closes its copies of the worker's ends of both
  queues, and a worker's children let go of theirs: or the executor's threads would wait for the rest of a reply that a
  killed worker has half written, and for a dead worker to read the rest of a request.
* The interpreter joins the executor's thread as it ends, and that one waits for the running call. So workers are asked
  to exit, and then killed, just before.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import weakref
from concurrent.futures import Future
from concurrent.futures.process import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from multiprocessing.process import BaseProcess
from typing import Any

from ragen.errors import LaneStartError
from ragen.parallel.lanes.codec import portable
from ragen.parallel.lanes.executor_process import WorkerContext, start_fork_server, without_main_script
from ragen.parallel.lanes.future_lane import FutureHandle, Hello, in_words
from ragen.parallel.lanes.handle import Ending, LaneKind, Message, Position, WorkerGone, WorkerHandle
from ragen.parallel.lanes.progress import Progress
from ragen.parallel.lanes.worker import _worker_first_reply, _worker_init, _worker_step_single_env
from ragen.parallel.this_process import usable_cpus

EXIT_TIMEOUT = 2.0  # seconds that workers get to close their environments when the program ends without closing them
_PATIENCE = 2.0  # seconds for what takes milliseconds unless the system is in trouble
_STACKS_TIMEOUT = 0.3  # seconds
_LOST = 255  # what the standard library takes for an exit code when another thread has read it from the fork server


class ExecutorKind(LaneKind):
    """Starts workers as processes of executors.

    Attributes:
        name: ``"executor"``.
        slots: Processors that this process may use.
        start_method: ``"forkserver"`` or ``"spawn"``.
    """

    name = "executor"

    def __init__(self, start_method: str) -> None:
        """Start nothing yet; ``"spawn"`` is taken where there is no ``"forkserver"``."""
        available = multiprocessing.get_all_start_methods()
        self.start_method = start_method if start_method in available else "spawn"
        self.slots = usable_cpus()

    def start(self, lane: str, first: Message | None = None) -> WorkerHandle:
        """See :meth:`LaneKind.start`."""
        try:
            _end_before_threads_are_joined()
            return _ExecutorHandle(self, lane, first)
        except (OSError, RuntimeError, NotImplementedError) as error:
            raise LaneStartError(f"{lane}: no worker can be started: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing: executors share nothing but what the standard library keeps until the program ends."""

    def forget_in_child(self) -> None:
        """See :meth:`LaneKind.forget_in_child`."""
        global _starting
        _starting = threading.Lock()
        _live.clear()


class _ExecutorHandle(FutureHandle):
    """The worker of one executor.

    The starter thread makes the executor and the process; they belong to the lane's thread when it has ended, or, if
    the handle was ended before, are ended by the starter itself.
    """

    def __init__(self, kind: ExecutorKind, lane: str, first: Message | None) -> None:
        self._hello: Future[Hello] = Future()
        super().__init__(self._hello)
        self._owner = os.getpid()
        self._executor: ProcessPoolExecutor | None = None
        self._closer: threading.Thread | None = None
        self._ending: Ending | None = None
        self._turnover = threading.Lock()  # held for the moments in which the starter and the lane's thread agree
        self._started = self._abandoned = False
        self._lifeline, theirs = multiprocessing.Pipe()
        self._context = WorkerContext(kind.start_method, theirs)
        memory = self._context.RawArray("b", Progress.SIZE)
        self._progress = Progress(memory)
        request = portable(first) if first is not None else None
        arguments = lane, memory, request
        self._starter = threading.Thread(target=self._start, args=arguments, name=f"ragen starts {lane}", daemon=True)
        self._starter.start()
        _live.add(self)

    def _start(self, *arguments: Any) -> None:
        """Start the process; in a thread of its own."""
        context: Any = self._context  # which has what the executor needs of one
        try:
            with _starting, context.lifeline, without_main_script():
                if context.method == "forkserver":
                    start_fork_server()
                self._executor = ProcessPoolExecutor(1, context, initializer=_worker_init, initargs=arguments)
                if context.method == "spawn" and hasattr(signal, "pthread_sigmask"):
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C would come before it ignores it
                greeting = self._executor.submit(_worker_first_reply)
                context.close_workers_ends()
        except BaseException as error:
            self._hello.set_exception(error)
        else:
            greeting.add_done_callback(partial(_pass_on, self._hello))
        with self._turnover:
            self._started = True
        if self._abandoned:
            self._end_process()

    def _submit(self, message: Message) -> Future[Message | None]:
        assert self._executor is not None
        try:
            return self._executor.submit(_worker_step_single_env, portable(message))
        except RuntimeError as error:  # a broken pool, or an interpreter that is about to end
            raise WorkerGone(str(error)) from error

    def position(self) -> Position | None:
        return self._progress.read()

    def stacks(self) -> str:
        """See :meth:`WorkerHandle.stacks`; "" as well while C code holds the interpreter's lock."""
        with contextlib.suppress(OSError, EOFError):
            self._lifeline.send_bytes(b"stacks")
            if self._lifeline.poll(_STACKS_TIMEOUT):
                return self._lifeline.recv_bytes().decode(errors="replace")
        return ""

    def ask_to_exit(self) -> bool:
        asked = super().ask_to_exit()
        if asked:
            self._begin_to_shut_down()
        return asked

    def end(self) -> Ending:
        if self._ending is None:
            self._starter.join(_PATIENCE)
            with self._turnover:
                self._abandoned = not self._started
            if self._abandoned:
                self._ending = Ending(error="was still being started by the operating system")
            else:
                self._ending = replace(self._end_process(), position=self.position())
            self._close()
        return self._ending

    def forget_in_child(self) -> None:
        """See :meth:`WorkerHandle.forget_in_child`; the executor itself is left alone, its thread is not here."""
        super().forget_in_child()
        self._lifeline.close()
        self._context.forget_in_child()

    def _end_process(self) -> Ending:
        """Kill the process, and end the executor with its threads and pipes."""
        process = self._context.process
        if process is None or process.pid is None:
            error = self._hello.exception(0)
            return Ending(error=f"could not be started: {in_words(error) if error else self._failure}")
        where, has_closed = f"pid {process.pid}", self._exit is not None and self._exit.done()
        _kill(process, _PATIENCE if has_closed else 0.0)
        self._shut_down()
        if process.exitcode is None:  # asked for only now that no thread is left that would ask at the same time
            multiprocessing.connection.wait([process.sentinel], _PATIENCE)
        status = process.exitcode
        if status == _LOST and self._context.method == "forkserver":
            status = None
            if not self._is_cut():  # nothing but the fork server has ended
                os.kill(process.pid, signal.SIGKILL)
        self._lifeline.close()
        self._context.let_go()
        return Ending(where, status)

    def _begin_to_shut_down(self) -> None:
        """Have the executor end once it has nothing to do any more; its thread is waited for in one of its own."""
        if self._executor is None or self._closer is not None:
            return
        closer = threading.Thread(
            target=_shut_down, args=[self._executor, self._context], name="ragen ends a worker", daemon=True
        )
        try:
            closer.start()
            self._closer = closer
        except RuntimeError:  # there can be no thread now
            self._executor.shutdown(wait=False)

    def _shut_down(self) -> None:
        """End the executor's threads, as far as they do so in time."""
        self._begin_to_shut_down()
        if self._closer is not None:
            self._closer.join(_PATIENCE)
        self._executor = None

    def _is_cut(self) -> bool:
        """Whether the worker's end of the lifeline is closed, as it is when the worker has ended."""
        try:
            while self._lifeline.poll(0):
                self._lifeline.recv_bytes()
            return False
        except (EOFError, OSError):
            return True

    def leave(self) -> BaseProcess | None:
        """The program ends: ask the worker to exit if it is idle, kill it if not; the process to wait for."""
        if self._owner != os.getpid() or self._ending is not None:
            return None
        self._starter.join(_PATIENCE)
        process = self._context.process
        if process is None or process.pid is None:
            return None
        if not self.ask_to_exit():
            _kill(process)
        return process


def _kill(process: BaseProcess, patience: float = 0.0) -> None:
    """Kill a process that does not end by itself in time; does not wait for the end of one that was killed."""
    if not multiprocessing.connection.wait([process.sentinel], patience):  # is_alive() would take its exit status
        with contextlib.suppress(OSError):
            process.kill()


def _shut_down(executor: ProcessPoolExecutor, context: WorkerContext) -> None:
    with contextlib.suppress(RuntimeError):  # it has a thread that could not be started
        executor.shutdown()
    context.let_go()


def _pass_on(target: Future[Any], source: Future[Any]) -> None:
    """Give one future what another has."""
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())


_starting = threading.Lock()  # one at a time, as each changes what the standard library tells its process
_live: weakref.WeakSet[_ExecutorHandle] = weakref.WeakSet()


@cache
def _end_before_threads_are_joined() -> None:
    """Have all workers ended when the program ends, early enough for executors' threads to end too."""
    getattr(threading, "_register_atexit", atexit.register)(_leave_all)


def _leave_all() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT
    left = [process for handle in list(_live) if (process := handle.leave()) is not None]
    for process in left:
        _kill(process, max(0.0, deadline - time.monotonic()))
