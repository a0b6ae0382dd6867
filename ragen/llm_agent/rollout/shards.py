"""A manager whose environments are in shards, each of which a thread of its own may step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.placement import spread
from ragen.parallel.stats import LaneStats

AUTO = -1
MOST_SHARDS = 16  # threads of an automatic number of shards

Cache = dict[str, Any]


class ShardedEnvManager(EnvStateManager):
    """An :class:`~ragen.llm_agent.es_manager.EnvStateManager` whose shards may be stepped by a thread each.

    Lanes are dealt out by shard, as far as there are enough, since a lane serves one thread at a time.

    Attributes:
        shards: The environment ids of each shard: every tag is spread evenly over them, and groups stay whole where
            that stays even.
    """

    def __init__(self, config: Any, mode: str = "train", jobs: int = AUTO) -> None:
        """See :class:`~ragen.llm_agent.es_manager.EnvStateManager`.

        Args:
            config: The whole configuration.
            mode: ``"train"`` or ``"val"``.
            jobs: How many shards; -1 is two for each worker, so that one of them can think while the other acts.
        """
        self._shard_of: dict[int, int] = {}
        super().__init__(config, mode, spread=self._spread)
        specs = self._engine.specs()
        count = min(MOST_SHARDS, max(2, 2 * self.max_workers)) if jobs == AUTO else jobs
        self._shard_of = spread(specs, max(1, min(count, len(specs))))
        found = sorted(set(self._shard_of.values()))
        self.shards = [[env_id for env_id, shard in self._shard_of.items() if shard == index] for index in found]

    def step_shard(self, inputs: Sequence[Mapping[str, Any]]) -> list[Cache]:
        """:meth:`step` for environments of one shard, in any thread. A shard is one thread's at a time."""
        return self.step(inputs) if inputs else []

    def thread_stats(self) -> list[LaneStats]:
        """:meth:`lane_stats` of what this thread has asked for alone."""
        return self._engine.stats(of_this_thread=True)

    def disturbed_by_threads(self) -> list[str]:
        """The tags whose environments cannot be played while other threads run.

        They draw from the process's own random numbers, and live in the main process, where others draw too.
        """
        return sorted({r.spec.tag for r in self._engine.records.values() if r.lane is None and r.spec.uses_global_rng})

    def _spread(self, specs: Sequence[EnvSpec], lanes: int) -> dict[int, int]:
        """Give the environments of each shard lanes of its own, or one that it shares with other shards."""
        shards: dict[int, list[EnvSpec]] = {}
        for spec in specs:
            shards.setdefault(self._shard_of.get(spec.env_id, 0), []).append(spec)
        homes: dict[int, int] = {}
        for place, members in enumerate(shards[shard] for shard in sorted(shards)):
            own = _lanes_of(place, len(shards), lanes)
            homes.update({env_id: own[index] for env_id, index in spread(members, len(own)).items()})
        return homes


def _lanes_of(place: int, shards: int, lanes: int) -> range:
    """The lanes of one of several shards: several of its own, or one that it shares with others."""
    if lanes <= shards:
        return range(place % lanes, place % lanes + 1)
    return range(place * lanes // shards, (place + 1) * lanes // shards)
