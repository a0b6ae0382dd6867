"""A set of environments held by one user-facing object: the engine behind every manager, container and wrapper.

Each of them is an interface of its own, with its users' names and formats. They share the following: the engine is
closed with its holder, even when the holder is garbage collected; calls to a closed holder are refused; failures are
values, or are raised if the settings say so; and where episodes begin one by one, so that the environments are never
all reset together, placement is decided on again every :data:`REBALANCE_INTERVAL` turns.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from envlanes.closing import Closing
from envlanes.engine import Engine
from envlanes.environments import EnvFailed
from envlanes.episode.spec import EnvSpec
from envlanes.errors import StateError
from envlanes.failures import OnFailure, ignore
from envlanes.settings import Settings
from envlanes.stats import LaneStats, Work

REBALANCE_INTERVAL = 32  # turns of each environment: about an episode


class EnvSet(Closing):
    """Holds an engine; closed with a ``with`` block, by :meth:`close`, or when it is forgotten."""

    holder: ClassVar[str] = "manager"  # its name for its users, in messages
    _finalizer: weakref.finalize[Any, Any] | None = None

    def _hold(
        self, specs: Iterable[EnvSpec], settings: Settings | None = None, *, on_failure: OnFailure = ignore
    ) -> None:
        """Create the engine; see :class:`~envlanes.engine.Engine` for the arguments."""
        self._engine = Engine(specs, settings, on_failure=on_failure)
        # Holds the engine, not the holder: a holder that is forgotten is collected, and its workers end with it. The
        # collector may run in a thread that has workers at work, so environments there are closed later (`forgotten`).
        self._finalizer = weakref.finalize(self, self._engine.close, forgotten=True)
        self._raises = self._engine.settings.on_env_failure == "raise"
        self._turns = 0  # since placement was decided on

    @property
    def closed(self) -> bool:
        """Whether the set has been closed."""
        return self._finalizer is None or not self._finalizer.alive

    def close(self) -> None:
        """Close all environments, and the workers unless another holder uses them; may be called twice."""
        # `detach` is atomic: of two threads that close, or of close() and the collector, one closes.
        if self._finalizer is not None and self._finalizer.detach():
            self._engine.close()

    def _check_open(self) -> None:
        if self._finalizer is None or not self._finalizer.alive:
            raise StateError(f"this {self.holder} is closed; create a new one.")

    def _raise_failures(self, values: Mapping[int, Any], at_build: bool = False) -> None:
        """Raise the first failure if the settings say so; with ``at_build``, a failure to build is always raised."""
        if self._raises or at_build:
            for value in values.values():
                if type(value) is EnvFailed and (self._raises or value.phase == "build"):
                    raise value.error

    def _count_turns(self, count: int) -> None:
        """Count turns where episodes begin one by one, before they are played."""
        self._turns += count
        if self._turns > REBALANCE_INTERVAL * len(self._engine.records):
            self._turns = 0
            self._engine.rebalance()

    def _values_of(self, found: Mapping[int, Any]) -> Sequence[Any]:
        """The results of a call; raises the first exception among them."""
        for value in found.values():
            if isinstance(value, Exception):
                raise value
        return list(found.values())

    def stats(self) -> list[LaneStats]:
        """Statistics of the main process, then of each worker."""
        return self._engine.stats()

    def not_deterministic(self) -> dict[str, str]:
        """Tags whose replays differed, with the environment type of each."""
        return dict(self._engine.not_deterministic)

    def not_restored(self) -> dict[str, str]:
        """Tags whose ``save`` and ``load`` did not restore an environment, with the environment type of each."""
        return dict(self._engine.not_restored)

    def work(self) -> Work:
        """The work of environments so far: seconds inside them, seconds that passed, workers, and costs by tag."""
        return self._engine.work()
