"""A worker of one's own, in which anything may be done to environments: every call ends, and tells what happened.

For tools that look at environments nobody trusts yet. What hangs is killed, what crashes harms no one else, and the
next call finds a fresh worker (which knows no environments yet).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from ragen.parallel.host import Raised, ReplayOrder, ResetOrder
from ragen.parallel.launcher import Launcher
from ragen.parallel.luggage import pack_requests
from ragen.parallel.pool import LaneFailure, Message, WorkerPool, exchange
from ragen.parallel.turn import EnvSpec, TurnRequest

_managers = itertools.count(1)


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
        kind = {"died": "crash"}.get(failure.kind, failure.kind)
        text = f"no answer within {failure.seconds:g} s" if kind == "timeout" else f"its process {_end(failure)}"
        return cls(kind, text, failure.stacks)


def _end(failure: LaneFailure) -> str:
    return failure.ending.describe()


class Sandbox:
    """One worker process and its environments; a context manager.

    Attributes:
        timeout: Seconds that each reset, turn or call may take.
        lost: Whether the worker was lost, and the environments with it, since they were brought in.
    """

    def __init__(self, timeout: float, environ: Mapping[str, str] | None = None, like: Sandbox | None = None) -> None:
        """Start the worker, without waiting for it.

        Args:
            timeout: Seconds that each reset, turn or call may take.
            environ: Environment variables for it, beside those of this process.
            like: Another sandbox with the same environment variables, which is closed later than this one: a sibling
                of its worker starts faster.
        """
        self.timeout = timeout
        self.lost = False
        self._owns_pool = like is None
        self._pool: _SandboxPool = _SandboxPool(environ) if like is None else like._pool
        self._lane = self._pool.open_extra("sandbox")
        self._lane.start()
        self._manager = next(_managers)

    def adopt(self, specs: Sequence[EnvSpec]) -> Mishap | None:
        """Bring environments in; they are built when first used. Classes of the main script travel by value."""
        try:
            blob = cloudpickle.dumps(list(specs))
        except Exception as error:
            return Mishap.of_raised(Raised.of(error, "load"))
        self.lost = False
        values = self._do("adopt", [(specs[0].env_type, [spec.env_id for spec in specs], blob)], len(specs))
        return next((value for value in values if isinstance(value, Mishap)), None)

    def reset(self, orders: Sequence[ResetOrder]) -> list[Any]:
        """Reset environments; ``(observation, digest)`` or a :class:`Mishap` for each."""
        return self._do("reset", list(orders), len(orders))

    def play(self, request: TurnRequest) -> Any:
        """Play a turn; a ``TurnResult`` or a :class:`Mishap`."""
        return self._do("play", pack_requests([request]), 1)[0]

    def replay(self, order: ReplayOrder) -> Any:
        """Rebuild an episode; None, a ``Divergence`` or a :class:`Mishap`."""
        return self._do("replay", [order], 1)[0]

    def call(self, env_id: int, name: str, *arguments: Any) -> Any:
        """Call a method of an environment, or read an attribute; a failure is a :class:`Mishap`."""
        return self._do("call", [(env_id, name, arguments)], 1)[0]

    def close(self) -> None:
        """End the worker and all it has started."""
        if self._owns_pool:
            self._pool.close()
        else:
            self._pool.close_extra(self._lane)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, verb: str, items: list[Any], count: int) -> list[Any]:
        reply = exchange({self._lane: Message(self._manager, verb, items, self.timeout)})[self._lane]
        if isinstance(reply, LaneFailure):
            self.lost = True
            return [Mishap.of_lane(reply)] * count
        return [Mishap.of_raised(o.value) if isinstance(o.value, Raised) else o.value for o in reply]


class _SandboxPool(WorkerPool):
    """A pool that shares nothing with the managers' pools."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self._environ = environ
        super().__init__("forkserver" if sys.platform == "linux" else "spawn", [])

    def _new_launcher(self) -> Launcher:
        return Launcher(self._method, self._preload, self._environ)
