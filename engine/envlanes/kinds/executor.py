"""Workers that need nothing but the standard library: one ``ProcessPoolExecutor`` for each.

    main process                                                  worker process
    +---------------------+  submit: a whole request at a time    +---------------------------+
    | _ExecutorHandle ----+-------------------------------------> | _serve                    |
    |    ^                |  call queue, result queue             |   _worker_init, once      |
    |    | wakes          | <------------------------------------ |   _worker_step_single_env |
    | executor's thread   |                                       |                           |
    |                     |  position, in shared memory           |                           |
    | Progress            | < - - - - - - - - - - - - - - - - - - | Progress                  |
    |                     |  lifeline: closed when main is gone   |                           |
    | _lifeline ----------+-------------------------------------> | thread: exits             |
    +---------------------+                                       +---------------------------+

This is the kind for macOS, Windows, and containers without ``/proc``. It takes care of the following:

* Each executor has a keeper, a thread of its own, which starts the process, waits, and ends both: starting waits for
  the fork server, and ending for the executor's threads.
* The main script is not imported into workers, as the standard library would: it need not be guarded by
  ``if __name__ == "__main__":``, and what it imports, such as torch, stays out of them.
* A pipe ends when no process holds its other end. So the main process closes its copies of the worker's ends of both
  queues, and a worker's children close theirs. Otherwise the executor's threads would wait for the rest of a reply that
  a killed worker has half written, and for a dead worker to read the rest of a request.
* The interpreter joins the executor's thread at exit, and that thread waits for the running call. So workers are asked
to exit, and then killed, just before.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess, _children  # type: ignore[attr-defined]
from typing import Any

from envlanes.errors import LaneStartError
from envlanes.kinds.futures import FutureHandle, in_words
from envlanes.resources import remove_tree, temporary_folder
from envlanes.this_process import usable_cpus
from envlanes.workers.codec import portable
from envlanes.workers.handle import Ending, Message, Position, WorkerGone, WorkerHandle, WorkerKind
from envlanes.workers.progress import Progress
from envlanes.workers.server import _worker_init, _worker_step_single_env

EXIT_TIMEOUT = 2.0  # seconds that workers get to close their environments when the program ends without closing them
_PATIENCE = 2.0  # seconds for operations that normally take milliseconds
_LOST = 255  # what the standard library takes for an exit code that it could not read from the fork server
_MAX_DESCRIPTORS = 1024
_PRELOADED = ("envlanes.workers.server", "envlanes.episode.host", "numpy")


class ExecutorKind(WorkerKind):
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

    def start(self, name: str) -> WorkerHandle:
        """See :meth:`WorkerKind.start`."""
        try:
            _end_before_threads_are_joined()
            return _ExecutorHandle(self.start_method, name)
        except (OSError, RuntimeError, NotImplementedError) as error:
            raise LaneStartError(f"{name}: no worker can be started: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing: executors share nothing but what the standard library keeps until the program ends."""

    def forget_in_child(self) -> None:
        """See :meth:`WorkerKind.forget_in_child`."""
        global _starting
        _starting = threading.Lock()
        _live.clear()


class _ExecutorHandle(FutureHandle):
    """The worker of one executor; its keeper makes the executor and the process, and closes both."""

    def __init__(self, start_method: str, name: str) -> None:
        self._hello: Future[int] = Future()
        super().__init__(self._hello)
        self._owner = os.getpid()
        self._executor: ProcessPoolExecutor | None = None
        self._ending: Ending | None = None
        self._is_doomed = False  # is to be killed as soon as it is there
        self._is_started, self._may_end, self._has_ended, self._may_close = (threading.Event() for _ in range(4))
        self._lifeline, theirs = multiprocessing.Pipe()
        self._context = _Context(start_method, theirs)
        memory = self._context.RawArray("b", Progress.SIZE)
        self._progress = Progress(memory)
        self._folder = _new_folder()
        keeper = threading.Thread(target=self._keep, args=[name, memory], name=f"envlanes keeps {name}", daemon=True)
        self._keeper = keeper
        keeper.start()
        _live.add(self)

    # The keeper's thread

    def _keep(self, name: str, memory: Any) -> None:
        """The whole life of the process."""
        try:
            with _starting, self._context.lifeline, without_main_script():
                greeting = self._start(name, memory)
        except BaseException as error:
            self._hello.set_exception(error)
        else:
            greeting.add_done_callback(partial(_pass_on, self._hello))
        self._is_started.set()
        if self._is_doomed:
            self._kill()
        self._may_end.wait()
        if self._executor is not None:
            with contextlib.suppress(RuntimeError):  # it has a thread that could not be started
                self._executor.shutdown()
        self._has_ended.set()
        self._may_close.wait()
        self._context.close()
        remove_tree(self._folder)

    def _start(self, name: str, memory: Any) -> Future[int]:
        context: Any = self._context  # which has what the executor needs of one
        if context.method == "forkserver":
            start_fork_server()
        arguments = (), name, memory, self._folder
        self._executor = ProcessPoolExecutor(1, context, initializer=_worker_init, initargs=arguments)
        if context.method == "spawn" and hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C would come before it ignores it
        greeting = self._executor.submit(os.getpid)
        context.close_workers_ends()
        _children.discard(context.process)  # else the next start asks for its exit code, which can be read only once
        return greeting

    # The worker's thread

    def _submit(self, message: Message) -> Future[Message | None]:
        assert self._executor is not None
        try:
            return self._executor.submit(_worker_step_single_env, portable(message))
        except RuntimeError as error:  # a broken pool, or an interpreter that is about to end
            raise WorkerGone(str(error)) from error

    def position(self) -> Position | None:
        return self._progress.read()

    def ask_to_exit(self) -> bool:
        asked = super().ask_to_exit()
        if asked:
            self._may_end.set()
        return asked

    def end(self) -> Ending:
        if self._ending is None:
            self._is_doomed = True
            if self._is_started.wait(_PATIENCE):
                self._ending = self._end_process()
            else:  # the keeper ends it
                self._ending = Ending(error="was still being started by the operating system")
            self._may_end.set()
            self._may_close.set()
            self._lifeline.close()
            if self._has_ended.is_set():
                self._keeper.join(_PATIENCE)
            self._close()
        return self._ending

    def _end_process(self) -> Ending:
        """Kill the process, and end the executor with its threads; how it ended."""
        process = self._context.process
        if process is None or process.pid is None:
            error = self._hello.exception(0)
            self._may_end.set()
            self._has_ended.wait(_PATIENCE)
            return Ending(error=f"could not be started: {in_words(error) if error else self._failure}")
        self._kill(_PATIENCE if self._exit is not None and self._exit.done() else 0.0)
        self._may_end.set()
        self._has_ended.wait(_PATIENCE)
        if process.exitcode is None:  # asked for only now that no thread is left that would ask at the same time
            multiprocessing.connection.wait([process.sentinel], _PATIENCE)
        status = process.exitcode
        if status == _LOST and self._context.method == "forkserver":
            status = None
            if not self._is_cut():  # nothing but the fork server has ended
                os.kill(process.pid, signal.SIGKILL)
        return Ending(f"pid {process.pid}", status, position=self.position())

    def _kill(self, patience: float = 0.0) -> None:
        """Kill the process if it does not end by itself in time; does not wait for the end of one that was killed."""
        process = self._context.process
        if process is None or process.pid is None:
            return
        if not multiprocessing.connection.wait([process.sentinel], patience):  # is_alive() would take its exit status
            with contextlib.suppress(OSError):
                process.kill()

    def _is_cut(self) -> bool:
        """Whether the worker's end of the lifeline is closed, as it is when the worker has ended."""
        try:
            if self._lifeline.poll(0):
                self._lifeline.recv_bytes()  # the worker says nothing, so this raises
            return False
        except (EOFError, OSError):
            return True

    def leave(self) -> bool:
        """The program ends: ask the worker to exit if it is idle, kill it if not; whether it is to be waited for."""
        if self._owner != os.getpid() or self._ending is not None:
            return False
        self._is_started.wait(_PATIENCE)
        if not self.ask_to_exit():
            self._is_doomed = True
            self._kill()
            self._may_end.set()
        return True

    def await_end(self, patience: float) -> None:
        """After :meth:`leave`: wait for the end of the process for so many seconds, then kill it."""
        if not self._has_ended.wait(patience):
            self._kill()

    def forget_in_child(self) -> None:
        """See :meth:`WorkerHandle.forget_in_child`; the executor itself is left alone, its threads are not here."""
        super().forget_in_child()
        self._ending = self._ending or Ending(error="belongs to the process that this one was forked from")
        self._lifeline.close()
        self._context.forget_in_child()


class _Context:
    """A multiprocessing context that an executor gets; knows the process and the queues that it makes with it."""

    def __init__(self, method: str, lifeline: Connection) -> None:
        """Start processes by this method, each with this end of the lifeline."""
        self.method = method
        self.lifeline = lifeline
        self.process: BaseProcess | None = None
        self._base = multiprocessing.get_context(method)
        self._queues: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
        """The process that works for the executor: runs :func:`_serve` around what the executor wants it to."""
        self._queues = args[:2]
        process: Any = self._base
        self.process = process.Process(target=_serve, args=(self.lifeline, target, *args))
        return self.process

    def close_workers_ends(self) -> None:
        """Let the worker's end be the end of both queues: nothing waits for it to read on, or to write on."""
        _close_ends(self._queues[:1], "_reader")
        _close_ends(self._queues[1:], "_writer")

    def close(self) -> None:
        """Close the queues, which no thread uses any more, and the process."""
        _close_ends(self._queues, "_reader", "_writer")
        self._queues = ()
        if self.process is not None:
            with contextlib.suppress(ValueError):  # it still runs
                self.process.close()

    def forget_in_child(self) -> None:
        """In a fork of the main process: close what would keep queues open that the parent thinks closed."""
        _close_ends(self._queues, "_reader", "_writer")
        self._queues = ()
        getattr(multiprocessing.process, "_children", set()).discard(self.process)  # or it is waited for at exit


def start_fork_server() -> None:
    """Have the program's fork server running, with what every worker needs imported once for all of them.

    One that runs already is left as it is; what the program itself wants to be imported there, is.
    """
    wanted = list(getattr(getattr(forkserver, "_forkserver", None), "_preload_modules", ["__main__"]))
    forkserver.set_forkserver_preload([*wanted, *_PRELOADED])
    try:
        forkserver.ensure_running()
    finally:
        forkserver.set_forkserver_preload(wanted)


@contextlib.contextmanager
def without_main_script() -> Iterator[None]:
    """Processes that this thread starts do not import the main script, nor fix the program's start method.

    What a worker needs of the main script, such as an environment's class, travels by value.
    """
    usual, thread = spawn.get_preparation_data, threading.get_ident()

    def prepare(name: str) -> dict[str, Any]:
        if threading.get_ident() != thread:
            return usual(name)
        method = multiprocessing.get_start_method(allow_none=True)
        data = usual(name)
        if method is None:
            multiprocessing.set_start_method(None, force=True)  # or the program could not set it any more
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = prepare
    try:
        yield
    finally:
        spawn.get_preparation_data = usual


def _close_ends(queues: tuple[Any, ...], *names: str) -> None:
    """Close ends of queues, by names that are the standard library's own: without them, nothing is closed."""
    for queue in queues:
        for name in names:
            if (end := getattr(queue, name, None)) is not None:
                end.close()


def _pass_on(target: Future[int], source: Future[int]) -> None:
    """Give one future what another one was given."""
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())


def _new_folder() -> str:
    """The path of a worker's temporary folder; "" where there can be none."""
    try:
        return str(temporary_folder() / f"worker-{next(_numbers)}")
    except OSError:
        return ""


_numbers = itertools.count()
_starting = threading.Lock()  # one at a time, as each changes what the standard library hands to its process
_live: weakref.WeakSet[_ExecutorHandle] = weakref.WeakSet()


@cache
def _end_before_threads_are_joined() -> None:
    """Have all workers ended when the program ends, early enough for executors' threads to end too."""
    getattr(threading, "_register_atexit", atexit.register)(_leave_all)


def _leave_all() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT
    for handle in [handle for handle in list(_live) if handle.leave()]:
        handle.await_end(max(0.0, deadline - time.monotonic()))


# In the worker


def _serve(lifeline: Connection, work: Callable[..., None], *arguments: Any) -> None:
    """Be a worker: do the executor's work, then end at once, whatever threads the environments have left."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _keep_from_children(lifeline, arguments[:2])
        threading.Thread(target=_watch, args=[lifeline], name="envlanes lifeline", daemon=True).start()
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
        os._exit(code)


def _keep_from_children(lifeline: Connection, queues: tuple[Any, ...]) -> None:
    """Have this worker's children let go of what shows the main process that this worker has ended."""

    def let_go() -> None:
        lifeline.close()
        _close_ends(queues, "_reader", "_writer")

    if os.name == "posix":
        os.register_at_fork(after_in_child=let_go)
        for descriptor in range(3, _MAX_DESCRIPTORS):
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, False)


def _watch(lifeline: Connection) -> None:
    """End with the main process, which never says anything: whatever is read is the end of the lifeline."""
    try:
        lifeline.recv_bytes()
    finally:
        os._exit(1)
