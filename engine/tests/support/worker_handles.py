"""The use of a worker's handle, in short: for tests of workers by themselves."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from envlanes.workers.handle import Message, WorkerGone, WorkerHandle, WorkerKind

PATIENCE = 20.0  # seconds; everything takes milliseconds, but the processors are others' too


def wait(handle: WorkerHandle, done: Callable[[], Any] = lambda: None) -> Message | None:
    """Wait for a reply, or until something holds."""
    deadline = time.monotonic() + PATIENCE
    while (reply := handle.receive()) is None and not done():
        poll = select.poll()
        poll.register(handle, select.POLLIN | (select.POLLOUT if handle.unsent else 0))
        assert poll.poll((deadline - time.monotonic()) * 1000), "nothing came"
    return reply


def asked(kind: WorkerKind, message: Message, lane: str = "worker 0") -> WorkerHandle:
    """A worker that was sent a request as soon as its start had begun; `wait` shows whether it was gone already."""
    handle = kind.start(lane)
    with suppress(WorkerGone):
        handle.send(message)
    return handle


def up(kind: WorkerKind, lane: str = "worker 0") -> WorkerHandle:
    """A worker that has said hello."""
    handle = kind.start(lane)
    assert wait(handle, lambda: handle.is_up) is None
    return handle
