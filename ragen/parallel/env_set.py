"""A set of environments that one object of a user's holds: the engine behind every manager, container and wrapper.

Each of them is an interface of its own, with the names and formats of its users. What they share is here: the engine is
closed with its holder, however that goes; calls of a closed one are refused; failures are values, or are raised where
the settings say so; the seeds of groups follow one rule; and where episodes begin one by one, so that no reset of all
environments comes, placement is decided on again every now and then.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ragen.closing import Closing
from ragen.errors import StateError
from ragen.parallel.engine import EnvEngine
from ragen.parallel.environments import raise_failures
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.failures import OnFailure, say_nothing
from ragen.parallel.placement import Spread
from ragen.parallel.placement import spread as spread_evenly
from ragen.parallel.settings import Settings
from ragen.parallel.stats import Gain, LaneStats

REBALANCE_INTERVAL = 32  # turns of each environment after which placement is decided on again


def group_seeds(first: int, groups: int, group_size: int = 1) -> list[int]:
    """The seed of every environment, groups one after the other: members of a group share theirs.

    RAGEN's rule: each further group's seed is one higher.

    Args:
        first: Seed of the first group.
        groups: Number of groups.
        group_size: Environments of a group.
    """
    return [first + index // group_size for index in range(groups * group_size)]


class EnvSet(Closing):
    """Holds an engine; closed with a ``with`` block, by :meth:`close`, or when it is forgotten."""

    holder: ClassVar[str] = "manager"  # what its users call it, in messages
    _finalizer: weakref.finalize[Any, Any] | None = None

    def _hold(
        self,
        specs: Iterable[EnvSpec],
        settings: Settings | None = None,
        *,
        spread: Spread = spread_evenly,
        on_failure: OnFailure = say_nothing,
    ) -> None:
        """Have an engine; see :class:`~ragen.parallel.engine.EnvEngine` for the arguments."""
        self._engine = EnvEngine(specs, settings, spread=spread, on_failure=on_failure)
        self._finalizer = weakref.finalize(self, self._engine.close, forgotten=True)
        self._raises = self._engine.settings.on_env_failure == "raise"
        self._turns = 0  # since placement was decided on

    @property
    def closed(self) -> bool:
        """Whether it can be used no more."""
        return self._finalizer is None or not self._finalizer.alive

    def close(self) -> None:
        """Close all environments, and the workers unless another holder uses them; may be called twice."""
        if self._finalizer is not None and self._finalizer.detach():
            self._engine.close()

    def __repr__(self) -> str:
        """What it is: how many environments of which tags, how they are stepped, and whether it is closed."""
        if self._finalizer is None:
            return f"<{type(self).__name__}, not made>"
        tags = Counter(record.spec.tag for record in self._engine.records.values())
        listed = ", ".join(f"{count} {tag}" for tag, count in tags.items()) or "no environments"
        mode = str(self._engine.use_lanes).lower()
        return f"<{type(self).__name__}: {listed}; use_multiprocessing={mode}{', closed' * self.closed}>"

    def _check_open(self) -> None:
        if self._finalizer is None or not self._finalizer.alive:
            raise StateError(f"this {self.holder} is closed; create a new one.")

    def _raise_failures(self, values: Mapping[int, Any], at_build: bool = False) -> None:
        """Raise the first failure, where failures raise; ``at_build`` that of one that cannot be built in any case."""
        raise_failures(values, self._raises, at_build)

    def _count_turns(self, count: int) -> None:
        """Count turns where episodes begin one by one, before they are played."""
        self._turns += count
        if self._turns > REBALANCE_INTERVAL * len(self._engine.records):
            self._turns = 0
            self._engine.rebalance()

    def _values_of(self, found: Mapping[int, Any]) -> Sequence[Any]:
        """What environments gave to a call; the first exception among it is raised."""
        for value in found.values():
            if isinstance(value, Exception):
                raise value
        return list(found.values())

    def stats(self) -> list[LaneStats]:
        """What each home (the main process first, then workers) hosts and has done."""
        return self._engine.stats()

    def not_deterministic(self) -> dict[str, str]:
        """Tags whose replays differed, with the environment type of each; empty where none did."""
        return dict(self._engine.failures.not_deterministic)

    def gain(self) -> Gain:
        """What workers have gained since this was made: the time that passed, and an estimate without workers."""
        return self._engine.gain()
