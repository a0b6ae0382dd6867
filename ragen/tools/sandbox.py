"""A worker for environments that are not trusted yet: every order ends, and reports what happened.

A hanging worker is killed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from envlanes.closing import Closing
from envlanes.episode.outcome import Raised
from envlanes.episode.spec import EnvSpec
from envlanes.kinds import available
from envlanes.lanes.exchange import ask, locked
from envlanes.lanes.failure import Cause, LaneFailure
from envlanes.lanes.handle import LaneKind
from envlanes.lanes.lane import Lane, Request
from envlanes.lanes.orders import CloseAll, Order, Rebuild

_CLOSING = 2.0  # seconds in which environments may close at the end
_engines = itertools.count(1)  # numbers; workers are not shared with engines, so those of engines may be the same


class Mishap(Exception):
    """A failed operation on an environment.

    Attributes:
        kind: ``"exception"``, ``"timeout"``, ``"crash"``, or ``"start"`` (the worker did not start).
        text: A description.
        story: The environment's traceback, or the stacks of the hung worker.
        where: The caller's description of the time: ``"in turn 3"``.
    """

    def __init__(self, kind: str, text: str, story: str = "", where: str = "") -> None:
        """See the attributes."""
        super().__init__(f"{kind} {where}: {text}")
        self.kind, self.text, self.story, self.where = kind, text, story, where

    @classmethod
    def of_raised(cls, raised: Raised, where: str) -> Mishap:
        """An environment raised or could not be loaded, or its result could not be pickled."""
        place = f" ({raised.place})" if raised.place else ""
        return cls("exception", f"{raised.text}{place}", raised.trace, where)


class Sandbox(Closing):
    """A worker and its environments; a context manager."""

    def __init__(self, timeout: float, environ: Mapping[str, str]) -> None:
        """Start the worker, without waiting for it.

        Args:
            timeout: Time-out in seconds of each reset, turn or call.
            environ: Additional environment variables. Workers that are not our own processes
                (:func:`envlanes.kinds.available`) have only those of this process.

        Raises:
            LaneStartError: It cannot be started.
        """
        self._timeout = timeout
        self._kind = _kind(environ)
        self._engine = next(_engines)
        self._lane = Lane("sandbox", self._kind)
        self._lane.start()

    def load(self, specs: Sequence[EnvSpec]) -> None:
        """Load environments; they are built on first use.

        Raises:
            Mishap: They cannot be loaded.
        """
        self.ask(Rebuild.of(specs, []), "while it was loaded")

    def ask(self, order: Order, where: str) -> Any:
        """The result of an order for one environment, described by ``where``.

        Raises:
            Mishap: The environment returned no result.
        """
        reply = ask({self._lane: Request(self._engine, order, self._timeout)})[self._lane]
        if isinstance(reply, LaneFailure):
            kind = "crash" if reply.cause is Cause.DIED else reply.cause.value
            who = "its worker" if reply.cause is Cause.START else "its process"
            raise Mishap(kind, f"{who} {reply.what}", reply.stacks, where)
        value = reply.outcomes[0].value
        if isinstance(value, Raised):
            raise Mishap.of_raised(value, where)
        return value

    def close(self) -> None:
        """Close the environments, and end the worker and its child processes."""
        if self._lane.handle is not None and self._lane.handle.is_up:
            ask({self._lane: Request(self._engine, CloseAll(), _CLOSING)})
        with locked([self._lane]):
            self._lane.end()
        self._kind.close()


def _kind(environ: Mapping[str, str]) -> LaneKind:
    if available("process") == "process":
        from envlanes.kinds.process.kind import ProcessKind

        return ProcessKind("forkserver" if sys.platform == "linux" else "spawn", [], environ)
    from envlanes.kinds.executor import ExecutorKind

    return ExecutorKind("spawn")
