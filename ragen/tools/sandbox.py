"""A worker of one's own, in which anything may be done to environments: every call ends, and tells what happened.

For tools that look at environments nobody trusts yet. What hangs is killed, what crashes harms no one else, and the
next call finds a fresh worker (which knows no environments yet).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ragen.closing import Closing
from ragen.parallel.episode.journal import Change
from ragen.parallel.episode.outcome import Outcome, Raised
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.kinds import available
from ragen.parallel.lanes.exchange import ask, locked
from ragen.parallel.lanes.failure import Cause, LaneFailure
from ragen.parallel.lanes.handle import LaneKind
from ragen.parallel.lanes.lane import Lane, Request
from ragen.parallel.lanes.orders import Call, CloseAll, Order, Rebuild

_KINDS = {Cause.DIED: "crash", Cause.TIMEOUT: "timeout", Cause.START: "start"}
_CLOSING = 2.0  # seconds in which environments may close at the end
_engines = itertools.count(1)  # numbers; workers are not shared with engines, so those of engines may be the same


class Mishap(NamedTuple):
    """Something that did not give a result.

    Attributes:
        kind: ``"exception"``, ``"timeout"``, ``"crash"``, or ``"start"`` (no worker came to be).
        text: What happened, in words.
        story: The environment's traceback, or the stacks of the hung worker.
        phase: What was being done when it raised: ``"load"``, ``"build"``, ``"send"`` ...
    """

    kind: str
    text: str
    story: str = ""
    phase: str = ""

    @classmethod
    def of_raised(cls, raised: Raised) -> Mishap:
        """An environment raised, or could not be loaded, or its result not be pickled."""
        return cls("exception", raised.text, raised.trace, raised.phase)

    @classmethod
    def of_lane(cls, failure: LaneFailure) -> Mishap:
        """A worker gave no reply."""
        is_late = failure.cause is Cause.TIMEOUT
        text = f"no answer within {failure.seconds:g} s" if is_late else f"its process {failure.ending.describe()}"
        return cls(_KINDS.get(failure.cause, failure.cause.value), text, failure.stacks)


class Sandbox(Closing):
    """One worker and its environments; a context manager.

    Attributes:
        timeout: Seconds that each reset, turn or call may take.
        lost: Whether the worker was lost, and the environments with it, since they were loaded.
    """

    def __init__(self, timeout: float, environ: Mapping[str, str] | None = None, like: Sandbox | None = None) -> None:
        """Start the worker, without waiting for it.

        Args:
            timeout: Seconds that each reset, turn or call may take.
            environ: Environment variables for it, beside those of this process. Where workers cannot be processes
                of our own (:func:`ragen.parallel.kinds.available`), they have those of this process alone.
            like: Another sandbox with the same environment variables, which is closed later than this one: a sibling
                of its worker starts faster.

        Raises:
            LaneStartError: It cannot be started.
        """
        self.timeout = timeout
        self.lost = False
        self._owns_kind = like is None
        self._kind: LaneKind = _kind(environ or {}) if like is None else like._kind
        self._engine = next(_engines)
        self._lane = Lane("sandbox", self._kind)
        self._lane.start()

    def load(self, specs: Sequence[EnvSpec]) -> Mishap | None:
        """Bring environments in; they are built when first used."""
        self.lost = False
        values = [outcome.value for outcome in self.do(Rebuild.of(specs, []))]
        return next((value for value in values if isinstance(value, Mishap)), None)

    def do(self, order: Order) -> list[Outcome]:
        """Carry out an order; a :class:`Mishap` stands for each value that did not come."""
        reply = ask({self._lane: Request(self._engine, order, self.timeout)})[self._lane]
        if isinstance(reply, LaneFailure):
            self.lost = True
            env_ids = [env_id for index in range(len(order)) for env_id in order.envs_at(index)]
            return [Outcome(env_id, Mishap.of_lane(reply)) for env_id in env_ids]
        return [
            outcome._replace(value=Mishap.of_raised(outcome.value)) if isinstance(outcome.value, Raised) else outcome
            for outcome in reply.outcomes
        ]

    def call(self, env_id: int, name: str, *arguments: Any) -> Any:
        """Call a method of an environment, or read an attribute; what it gave, or a :class:`Mishap`."""
        return self.do(Call([(env_id, Change(name, arguments))]))[0].value

    def close(self) -> None:
        """End the worker and all it has started."""
        if self._lane.handle is not None and self._lane.handle.is_up:
            ask({self._lane: Request(self._engine, CloseAll(), _CLOSING)})
        with locked([self._lane]):
            self._lane.end()
        if self._owns_kind:
            self._kind.close()


def _kind(environ: Mapping[str, str]) -> LaneKind:
    if available("process") == "process":
        from ragen.parallel.process.kind import ProcessKind

        return ProcessKind("forkserver" if sys.platform == "linux" else "spawn", [], environ)
    from ragen.parallel.lanes.executor import ExecutorKind

    return ExecutorKind("spawn")
