"""What runs inside a worker process: receive a batch, hand it to the host, send the outcomes.

One thread, one request at a time. The worker says hello once, then answers each request ``(number, manager, verb,
items)`` with ``(number, outcomes)``. Asked to ``play ahead``, it sends the first half of the outcomes as soon as they
are there, then half of the rest and so on, so that little is left to do for the main process when the last ones arrive;
that pays where the main process has a processor to itself. While it works, it keeps its position in a small shared
memory, so that the main process can tell which item's deadline is running without a message being sent. It ends when
the main process closes its end of the socket, and is ended by the kernel when the warden, its parent, ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ragen.parallel.host import EnvHost, Outcome, Raised, TimedOut, let_signals_pass
from ragen.parallel.journal import Divergence
from ragen.parallel.luggage import unpack_requests
from ragen.parallel.turn import EnvSpec, TurnResult
from ragen.parallel.wire import Channel, pack

STACKS_SIGNAL = signal.SIGUSR2
_PLAIN = frozenset({complex, Raised, TimedOut, Divergence})
AHEAD = 5e-4  # seconds of playing after which outcomes are worth a message of their own

in_worker = False


class Progress:
    """Where a worker is: number of the request, index of the item, and when work on the item started.

    The time is ``time.monotonic()``, which all processes of a machine share. The memory is written field by field while
    the other process may read it, so the order matters: the start comes first and the number last, and a reader takes
    what it reads twice the same. A half-written position then shows at worst too late a start, never too early a one.
    """

    SIZE = 3 * 8

    def __init__(self, file: int) -> None:
        """Map the shared file, which must be at least ``SIZE`` bytes long."""
        self._memory = mmap.mmap(file, self.SIZE)
        self._floats, self._integers = memoryview(self._memory).cast("d"), memoryview(self._memory).cast("q")

    def begin(self, number: int) -> None:
        """Work on this request, and on its first item, starts now."""
        self.mark(0)
        self._integers[2] = number

    def mark(self, index: int) -> None:
        """Work on this item starts now."""
        self._floats[0] = time.monotonic()
        self._integers[1] = index

    def read(self) -> tuple[int, int, float]:
        """Number of the request, index of the item, start of work on it."""
        position = None
        while position != (again := (self._integers[2], self._integers[1], self._floats[0])):
            position = again
        return again

    def close(self) -> None:
        """Give the memory back."""
        self._floats.release()
        self._integers.release()
        self._memory.close()


class Worker:
    """The request loop and the hosts it serves, one for each manager."""

    def __init__(self, channel: Channel, progress: Progress, lane: str) -> None:
        """Serve this channel, as the worker of this lane."""
        self._lane = lane
        self._env_types: set[str] = set()
        self._channel = channel
        self._progress = progress
        self._hosts: dict[int, EnvHost] = {}
        self._number = 0
        self._last: list[Outcome] = []  # of the last request
        self._verbs: dict[str, Callable[[EnvHost, Any], list[Outcome]]] = {
            "adopt": self._adopt,
            "reset": EnvHost.reset,
            "play": lambda host, items: host.play(unpack_requests(items)),
            "play ahead": self._play_ahead,
            "replay": EnvHost.replay,
            "call": EnvHost.call,
            "give": EnvHost.give,
            "take": EnvHost.take,
            "discard": self._discard,
        }

    def run(self) -> None:
        """Say hello, then answer until the main process says ``exit`` or is gone."""
        self._channel.send(pack((0, os.getpid())))
        while True:
            try:
                self._number, manager, verb, items = self._channel.receive().load()  # type: ignore[union-attr]
                if verb != "again":
                    self._last = []  # while no item is at its turn: what is freed may run environments' code
                self._progress.begin(self._number)
                if verb == "exit":
                    self._close()
                    return
                self._answer(manager, verb, items)
            except (EOFError, _MainGone):
                return

    def _answer(self, manager: int, verb: str, items: Any) -> None:
        if verb == "again":
            self._send(self._last[items:], items, apart=True)
            return
        if verb == "forget":
            self._hosts.pop(manager, EnvHost()).close()
            self._send([])
            return
        if manager not in self._hosts:
            self._hosts[manager] = EnvHost(self._progress.mark, keeps_outer_rng=False)
        outcomes = self._verbs[verb](self._hosts[manager], items)
        first = len(self._last)
        self._last += outcomes
        self._send(outcomes, first)

    def _play_ahead(self, host: EnvHost, items: Sequence[Any]) -> list[Outcome]:
        """Play turns; sends outcomes ahead, and returns those that are still to be sent."""
        requests = unpack_requests(items)
        outcomes: list[Outcome] = []
        done, since = 0, time.monotonic()
        while done < len(requests):
            part = requests[done : (done + len(requests) + 1) // 2 if len(requests) - done > 2 else None]
            outcomes += host.play(part, done)
            done += len(part)
            if done < len(requests) and time.monotonic() - since > AHEAD:
                first = len(self._last)
                self._last += outcomes
                self._send(outcomes, first, more=True)
                outcomes, since = [], time.monotonic()
        return outcomes

    def _adopt(self, host: EnvHost, blobs: Sequence[tuple[str, list[int], bytes]]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for _, env_ids, blob in blobs:
            self._progress.mark(len(outcomes))
            outcomes += _worker_init(host, env_ids, blob)
        self._env_types.update(env_type for env_type, _, _ in blobs)
        set_title(f"ragen {self._lane}: {', '.join(sorted(self._env_types))}")
        return outcomes

    def _discard(self, host: EnvHost, env_ids: list[int]) -> list[Outcome]:
        for index, env_id in enumerate(env_ids):
            self._progress.mark(index)
            host.discard([env_id])
        return []

    def _send(self, outcomes: list[Outcome], first: int = 0, apart: bool = False, more: bool = False) -> None:
        """Send a reply, or a part of one.

        Outcomes with objects that run code of their own as they are unpickled are pickled by themselves, and tried
        here, where that harms nobody else: in the main process it could.

        Args:
            outcomes: What to send.
            first: Index of the first of them in its batch.
            apart: Pickle each by itself.
            more: Whether the reply goes on after them.
        """
        self._progress.mark(first + len(outcomes))
        rows = list(map(_flat, outcomes))
        if apart or (parts := self._packed(rows, more)) is None:
            for index, outcome in enumerate(outcomes):
                if apart or self._packed(rows[index]) is None:
                    self._progress.mark(first + index)
                    rows[index] = _pickled_apart(outcome)
            self._progress.mark(first + len(outcomes))
            parts = pack((self._number, rows), more)
        try:
            self._channel.send(parts)
        except OSError as error:
            raise _MainGone from error

    def _packed(self, rows: Any, more: bool = False) -> list[memoryview] | None:
        """The frame of a reply, or None if not all of it is plain."""
        try:
            return pack((self._number, rows), more, PlainPickler)
        except Exception:
            return None

    def _close(self) -> None:
        for host in self._hosts.values():
            host.close()


class _MainGone(Exception):
    """The main process has closed its end of the socket."""


def _worker_init(host: EnvHost, env_ids: list[int], blob: bytes) -> list[Outcome]:
    """Take in the environments of one tag; what keeps their class from loading here is kept and reported."""
    try:
        specs: list[EnvSpec] = pickle.loads(blob)
    except BaseException as error:
        let_signals_pass(error)
        return [Outcome(env_id, Raised.of(error, "load"), 0.0) for env_id in env_ids]
    host.adopt(specs)
    return [Outcome(env_id, None, 0.0) for env_id in env_ids]


def _flat(outcome: Outcome) -> tuple[Any, ...]:
    """An outcome as a plain tuple, which pickles in half the time: a turn's fields and times, or any other's fields."""
    _, value, seconds, waited = outcome
    return (tuple(value), seconds, waited) if type(value) is TurnResult else tuple(outcome)


def _pickled_apart(outcome: Outcome) -> tuple[int, bytes]:
    """An outcome as bytes that were loaded once; in place of one that cannot be pickled or loaded, why."""
    pickled, phase = None, "send"
    try:
        pickled = _dumped(outcome)
        phase = "receive"
        pickle.loads(pickled)
    except BaseException as error:
        let_signals_pass(error)
        raised = replace(Raised.of(error, phase), pickled=None)
        pickled = pickle.dumps(outcome._replace(value=raised))
    return outcome.env_id, pickled


def _dumped(outcome: Outcome) -> bytes:
    try:
        return pickle.dumps(outcome, protocol=5)
    except Exception as plain:
        import cloudpickle  # carries instances of classes that only the user's main script defines

        try:
            return cloudpickle.dumps(outcome)
        except Exception:
            raise plain from None


class PlainPickler(pickle.Pickler):
    """Pickles built-in types, NumPy's and a few of our own, which run no other code as they are unpickled."""

    def reducer_override(self, value: Any) -> Any:
        """Refuse what is none of those; the pickler does not ask about the commonest built-in types.

        Raises:
            PicklingError: The value is not plain.
        """
        kind = type(value)
        is_name = issubclass(kind, type | FunctionType | BuiltinFunctionType)  # as which it is pickled
        origin = value if is_name else kind
        if origin in _PLAIN or origin.__module__.partition(".")[0] == "numpy":
            return NotImplemented
        raise pickle.PicklingError(f"a {kind.__qualname__} is not plain")


def run_worker(connection: int, progress: int, stacks: int, lane: str) -> None:
    """Be a worker until the main process is done with this one.

    Args:
        connection: Descriptor of the socket to the main process.
        progress: Descriptor of the shared file for :class:`Progress`.
        stacks: Descriptor of the file that all threads' stacks are written to on ``STACKS_SIGNAL``.
        lane: Name of the lane, for the process title.
    """
    global in_worker
    in_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides what an interrupt ends
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork of the main process has its handlers
    signal.set_wakeup_fd(-1)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    set_title(f"ragen {lane}")
    ours = socket.socket(fileno=connection)
    ours.settimeout(None)  # whatever socket.setdefaulttimeout says
    channel = Channel(ours)
    gc.freeze()  # what was imported is there to stay: collections need not look at it, nor unshare its memory
    os.register_at_fork(after_in_child=channel.close)  # a child that kept it could take this worker's requests
    Worker(channel, Progress(progress), lane).run()


def set_title(title: str) -> None:
    """Show a title for this process in ``ps`` and ``py-spy``."""
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(title[:15])
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(title)  # which does nothing in a fork of a process that has changed its environment


def main(arguments: dict[str, Any]) -> None:
    """Entry point of a worker that was started as a fresh interpreter (``start_method: spawn``)."""
    logging.basicConfig()
    run_worker(arguments["connection"], arguments["progress"], arguments["stacks"], arguments["lane"])
