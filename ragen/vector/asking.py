"""What a vector environment asks of its sub-environments besides steps, and how its calls get along with each other.

One call is under way at a time: a direct one, one that was begun and is waited for, or steps that were sent. What is
called in between is refused, with gymnasium's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import VectorEnv

from ragen.vector import attributes
from ragen.vector.fleet import Fleet
from ragen.vector.flights import Flights
from ragen.vector.pending import Pending


class Asking(VectorEnv[Any, Any, np.ndarray]):
    """Attributes and methods of sub-environments; the base of :class:`~ragen.vector.lane_vector_env.LaneVectorEnv`."""

    _fleet: Fleet
    _flights: Flights
    _pending: Pending | None = None

    def render(self) -> tuple[Any, ...]:
        """What each sub-environment renders."""
        return self._now("call_async", lambda: attributes.read_all(self._fleet.engine, "render", calls=True))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, or read an attribute; what it gave, as a tuple.

        The call is part of the episode: a sub-environment that is rebuilt has it too.
        """
        return self.call_some(range(self.num_envs), name, *args, **kwargs)

    def call_some(self, ids: Sequence[int], name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """:meth:`call` of some sub-environments, in the order of ``ids``."""
        return self._now("call_async", lambda: attributes.call_all(self._fleet.engine, name, args, kwargs, ids))

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Begin a :meth:`call`; :meth:`call_wait` gives its result."""
        self._begin("call", lambda: attributes.call_all(self._fleet.engine, name, args, kwargs))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The result of :meth:`call_async`; after a ``TimeoutError`` it may be called again for the same one."""
        return self._wait("call", timeout)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every sub-environment; one that is a method is called."""
        return self.get_attr_of(range(self.num_envs), name)

    def get_attr_of(self, ids: Sequence[int], name: str) -> tuple[Any, ...]:
        """:meth:`get_attr` of some sub-environments, in the order of ``ids``."""
        return self._now("call_async", lambda: attributes.read_all(self._fleet.engine, name, ids=ids))

    def are_wrapped(self, wrapper: type, ids: Sequence[int]) -> tuple[bool, ...]:
        """Whether each of some sub-environments, or anything that it wraps, is an instance of a class."""
        return self._now("call_async", lambda: attributes.are_wrapped(self._fleet.engine, wrapper, ids))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute, to one value for all or to one for each in a list or tuple.

        It outlives killed workers, and resets.
        """
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        self.set_attr_of(dict(enumerate(values)), name)

    def set_attr_of(self, values: Mapping[int, Any], name: str) -> None:
        """:meth:`set_attr` of some sub-environments, to a value for each."""
        self._now("set_attr", lambda: attributes.set_all(self._fleet.engine, name, values))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of every sub-environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Every sub-environment's generator: a copy of it, where it lives in a worker."""
        return self.get_attr("np_random")

    # Calls under way

    def _now(self, name: str, work: Callable[[], Any]) -> Any:
        self._refuse_pending(name)
        return work()

    def _begin(self, kind: str, work: Callable[[], Any]) -> None:
        self._refuse_pending(f"{kind}_async")
        self._pending = Pending(kind, work)

    def _wait(self, kind: str, timeout: float | None) -> Any:
        self._assert_is_running()
        pending = self._pending
        if pending is None or pending.kind != kind:
            raise NoAsyncCallError(f"Calling `{kind}_wait` without any prior call to `{kind}_async`.", kind)
        try:
            value = pending.wait(timeout)
        finally:
            if pending.is_done:
                self._pending = None
        return value

    def _refuse_pending(self, name: str) -> None:
        self._assert_is_running()
        under_way = self._pending.kind if self._pending is not None else "send" if self._flights else None
        if under_way is not None:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{under_way}` to complete.", under_way
            )

    def _free(self, ids: list[int]) -> list[int]:
        self._assert_is_running()
        taken = [index for index in ids if index in self._flights]
        if self._pending is not None or taken:
            kind = self._pending.kind if self._pending is not None else f"send` of {taken} by `send"
            raise AlreadyPendingCallError(f"Calling while waiting for a pending call to `{kind}` to complete.", kind)
        return ids

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")
