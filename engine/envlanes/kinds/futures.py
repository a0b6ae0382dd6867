"""A worker whose answers are futures: an executor, or something like it.

    worker's thread                            thread that fulfils futures
    +-----------------------+                  +--------------------------------+
    | send, receive, end:   |   submits        |                                |
    |   everything here ----+----------------> | a future is done:              |
    |                       |   one byte       |   _wake, which writes a byte   |
    | fileno() is readable  | <----------------+   if it is still waited for    |
    +-----------------------+                  +--------------------------------+

All state belongs to the thread that has the worker, but for the writing end of the socket pair: any thread that fulfils
a future writes to it, under a lock under which it is closed, and under which a future is taken off the list of those
that are waited for. Requests that are sent before the worker is up wait here, so that sending never waits for a worker
that is being started.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import abstractmethod
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any

from envlanes.workers.codec import EXIT
from envlanes.workers.handle import Message, WorkerGone, WorkerHandle

_AT_ONCE = 4096  # bytes: wake-ups that are read together


class FutureHandle(WorkerHandle):
    """One worker that gives a future for its hello and one for each request; replies come in the order of requests."""

    def __init__(self, hello: Future[int]) -> None:
        """Open the descriptor; the worker will say hello by this future, with its process id.

        Raises:
            OSError: There can be no more descriptors.
        """
        self._readable, self._wakeup = socket.socketpair()
        self._readable.setblocking(False)
        self._wakeup.setblocking(False)
        self._wakeup_lock = threading.RLock()  # a garbage collection within it may end another use of the same handle
        self._unsent: list[Message] = []
        self._futures: deque[Future[Any]] = deque([hello])  # of what is still to come, the hello first
        self._exit: Future[Message | None] | None = None  # is done when the environments are closed
        self._failure = ""  # why there will be no further reply
        hello.add_done_callback(self._wake)

    @abstractmethod
    def _submit(self, message: Message) -> Future[Message | None]:
        """Ask the worker to handle a request; its future gives None from a worker that ends instead.

        Raises:
            WorkerGone: The worker has ended.
        """

    def send(self, message: Message) -> None:
        """See :meth:`WorkerHandle.send`."""
        if self._failure:
            raise WorkerGone(self._failure)
        if not self.is_up:
            self._unsent.append(message)
            return
        try:
            future = self._submit(message)
            self.moved += size(message)
        except WorkerGone as error:  # which is raised after the replies that are on their way
            future = Future()
            future.set_exception(error)
        with self._wakeup_lock:
            self._futures.append(future)
        future.add_done_callback(self._wake)

    def fileno(self) -> int:
        """See :meth:`WorkerHandle.fileno`."""
        return self._readable.fileno()

    def receive(self) -> Message | None:
        """See :meth:`WorkerHandle.receive`."""
        if self._failure:
            raise WorkerGone(self._failure)
        reply: Message | None = None
        while reply is None and self._futures and self._futures[0].done():
            result = self._result(self._futures[0])
            with self._wakeup_lock:
                self._futures.popleft()
            if self.is_up and result is None:
                raise self._gone("it was asked to exit")
            if self.is_up:
                reply = result
            else:
                self._greet(result)
        self._calm()
        if reply is not None:
            self.moved += size(reply)
        return reply

    def _calm(self) -> None:
        """Make the descriptor readable if there is a reply, and only then; one that is not there yet will."""
        with self._wakeup_lock:
            with contextlib.suppress(BlockingIOError):
                self._readable.recv(_AT_ONCE)
            if self._futures and self._futures[0].done():
                self._wake(self._futures[0])

    def _greet(self, pid: int) -> None:
        """The worker is up: send what has waited for it."""
        self.pid, self.is_up = pid, True
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self.send(message)

    def _result(self, future: Future[Any]) -> Any:
        error = CancelledError() if future.cancelled() else future.exception()  # .result() would raise it here
        if error is not None:
            raise self._gone(in_words(error)) from error
        return future.result()

    def _gone(self, failure: str) -> WorkerGone:
        """There will be no further reply: so from now on the descriptor is readable for good."""
        self._failure = failure
        with self._wakeup_lock:
            self._wakeup.close()
        return WorkerGone(failure)

    def _wake(self, future: Future[Any]) -> None:
        """Make the descriptor readable, unless the worker's thread was faster; in whichever thread."""
        with self._wakeup_lock, contextlib.suppress(OSError):  # closed, or full and thus readable
            if future in self._futures:
                self._wakeup.send(b"\0")

    def ask_to_exit(self) -> bool:
        """See :meth:`WorkerHandle.ask_to_exit`; the end shows as soon as the environments are closed."""
        if not self.is_up or self._futures or self._failure:
            return False
        self.send(EXIT)
        self._exit = self._futures[-1]
        return True

    def forget_in_child(self) -> None:
        """See :meth:`WorkerHandle.forget_in_child`."""
        self._wakeup_lock = threading.RLock()
        self._close()

    def _close(self) -> None:
        """Let go of the descriptor."""
        self._failure = self._failure or "it was ended"
        self._futures.clear()
        with self._wakeup_lock:
            self._wakeup.close()
        self._readable.close()


def in_words(error: BaseException) -> str:
    """An error's class and the first paragraph of what it says: some of the standard library's give a lesson."""
    paragraph = str(error).strip().partition("\n\n")[0]
    return f"{type(error).__name__}: {' '.join(paragraph.split())}"


def size(message: Message) -> int:
    """Bytes of a message."""
    return sum(memoryview(part).nbytes for part in message)
