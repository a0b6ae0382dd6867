"""The process of an executor's worker: how it is made without the main script, and what it does around its work."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_STACKS_LENGTH = 8000  # characters: few enough bytes to be written at once, so that none is ever half there
_MAX_DESCRIPTORS = 1024
_PRELOADED = ("ragen.parallel.lanes.worker", "ragen.parallel.episode.host", "numpy")


class WorkerContext:
    """A multiprocessing context that an executor gets; knows the process and the queues that it makes with it."""

    def __init__(self, method: str, lifeline: Connection) -> None:
        """Start processes by this method, each with this end of the lifeline."""
        self.method = method
        self.lifeline = lifeline
        self.process: BaseProcess | None = None
        self._base = multiprocessing.get_context(method)
        self._queues: tuple[Any, ...] = ()
        self._users, self._turnover = 2, threading.Lock()  # the handle, and the executor with its threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
        """The process that works for the executor: runs :func:`_serve` around what the executor wants it to."""
        self._queues = args[:2]
        process: Any = self._base
        self.process = process.Process(target=_serve, args=(self.lifeline, target, *args))
        return self.process

    def close_workers_ends(self) -> None:
        """Let the worker's end be the end of both queues: nobody waits for it to read on, or to write on."""
        _close_ends(self._queues[:1], "_reader")
        _close_ends(self._queues[1:], "_writer")

    def let_go(self) -> None:
        """Say that the handle, or the executor, is done; the second one of them closes the queues and the process.

        On a busy machine the executor's threads may end after the handle has: until then they wait for the process.
        """
        with self._turnover:
            self._users -= 1
            if self._users:
                return
        self.release()
        if self.process is not None:
            with contextlib.suppress(ValueError):  # it runs on, whatever the system was told
                self.process.close()

    def release(self) -> None:
        """Close the queues, which no thread uses any more."""
        _close_ends(self._queues, "_reader", "_writer")
        self._queues = ()

    def forget_in_child(self) -> None:
        """In a fork of the main process: close what would keep queues open that the parent thinks closed."""
        self.release()
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


def _close_ends(queues: tuple[Any, ...], *names: str) -> None:
    """Close ends of queues, by names that are the standard library's own: without them, nothing is closed."""
    for queue in queues:
        for name in names:
            end = getattr(queue, name, None)
            if end is not None:
                end.close()


@contextlib.contextmanager
def without_main_script() -> Iterator[None]:
    """Processes that this thread starts do not import the main script, nor fix the program's start method.

    What a worker needs of the main script, such as an environment's class, travels by value.
    """
    told, thread = spawn.get_preparation_data, threading.get_ident()

    def tell(name: str) -> dict[str, Any]:
        if threading.get_ident() != thread:
            return told(name)
        method = multiprocessing.get_start_method(allow_none=True)
        data = told(name)
        if method is None:
            multiprocessing.set_start_method(None, force=True)  # or the program could not set it any more
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = tell
    try:
        yield
    finally:
        spawn.get_preparation_data = told


def _serve(lifeline: Connection, work: Callable[..., None], *arguments: Any) -> None:
    """Be a worker: do the executor's work, then end at once, whatever threads the environments have left."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _keep_from_children(lifeline, arguments[:2])
        threading.Thread(target=_watch, args=[lifeline], name="ragen lifeline", daemon=True).start()
        work(*arguments)
        code = 0
    except (EOFError, OSError):  # the main process is gone
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _keep_from_children(lifeline: Connection, queues: tuple[Any, ...]) -> None:
    """Have this worker's children let go of what tells the main process that this worker has ended."""

    def let_go() -> None:
        lifeline.close()
        _close_ends(queues, "_reader", "_writer")

    if os.name == "posix":
        os.register_at_fork(after_in_child=let_go)
        for descriptor in range(3, _MAX_DESCRIPTORS):
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, False)


def _watch(lifeline: Connection) -> None:
    """End with the main process; tell it where the other threads are when it asks."""
    try:
        while True:
            lifeline.recv_bytes()
            lifeline.send_bytes(_stacks()[-_STACKS_LENGTH:].encode(errors="replace"))
    finally:
        os._exit(1)


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    told = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            stack = "".join(traceback.format_stack(frame))
            told.append(f"Thread {names.get(ident, ident)} (most recent call last):\n{stack}")
    return "\n".join(told)
