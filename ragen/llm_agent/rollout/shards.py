"""Rollouts that overlap: while some environments' prompts are being answered, others are stepped.

In lockstep every turn waits for the slowest environment and for the slowest reply. Here the environments are split into
shards, each of which goes at its own pace::

    shard 0   step . prompt ......... step . prompt ......
    shard 1   ..... step .... prompt .......... step .....        one EnvStateManager, one engine
    shard 2   .. step . prompt .... step . prompt ........
    actor     ###########  ############  ######### #######

There is one manager, with one entry per environment: seeds, ids, statuses and caches are those of the ordinary rollout,
and the batch is made from them in the order of environments when all shards are through. What a shard cannot play is
played in lockstep, and the log says why: its episodes are taken over as they stand, so no turn is played twice.

An actor that answers requests one by one gets each as soon as it is there; one that is ``thread_safe`` is asked for
each shard on its own; any other gets batches of what is due in several shards. Such a batch goes off when no other
shard can add to it, it is full, or its oldest prompt has waited ``max_wait`` seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Self

from ragen.errors import ConfigError, EnvError, LaneError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.rollout.player import Rollout, RolloutPlayer, Schedule
from ragen.llm_agent.rollout.schedules import Gathering, Turns, Unit, streaming_backend
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.placement import spread
from ragen.settings import count, number, setting

log = logging.getLogger(__name__)

AUTO = -1
MOST_SHARDS = 16  # of an automatic number of shards
DEFAULT_MAX_WAIT = 0.02
RAISED_ALIKE = (ConfigError, EnvError, LaneError)  # what lockstep would raise too
_JOBS = "agent_proxy.parallel_n_jobs"
_BATCH = "agent_proxy.parallel_max_batch_size"
_WAIT = "agent_proxy.parallel_max_wait"


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


class Shards(Schedule):
    """Plays the turns of a player's rollouts in shards.

    Attributes:
        n_jobs: How many shards; -1 for an automatic number.
        max_batch_size: The most prompts that the actor is asked at a time; None for no bound.
        max_wait: The longest that prompts wait for those of other shards, in seconds.
        fallback_reason: Why (a part of) the last rollout was played in lockstep; None if it was not.
    """

    def __init__(self, config: Any, n_jobs: int | None = None) -> None:
        """Read the keys; environments and threads are made when they are first needed.

        Args:
            config: The whole configuration.
            n_jobs: How many shards; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has an invalid value.
        """
        self.n_jobs = setting(config, _JOBS, int, AUTO) if n_jobs is None else n_jobs
        if self.n_jobs != AUTO and self.n_jobs < 1:
            raise ConfigError(
                f"configuration key {_JOBS!r} is {self.n_jobs}; expected at least 1, or -1 for an automatic number."
            )
        self.max_batch_size = count(config, _BATCH, None, low=1)
        wait = number(config, _WAIT, None, 0)
        self.max_wait = DEFAULT_MAX_WAIT if wait is None else wait
        self.fallback_reason: str | None = None

    def new_es_manager(self, config: Any, mode: str) -> ShardedEnvManager:
        """A manager whose environments are in shards."""
        return ShardedEnvManager(config, mode, self.n_jobs)

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`.

        ``on_turn`` is called with the turn of the slowest shard, whenever something has arrived and every second.
        """
        assert isinstance(rollout.es_manager, ShardedEnvManager)
        by_id = {cache["env_id"]: cache for cache in rollout.episodes}
        units = [
            Unit(f"shard {shard}", [by_id[env_id] for env_id in env_ids if env_id in by_id])
            for shard, env_ids in enumerate(rollout.es_manager.shards)
        ]
        units = [unit for unit in units if unit.active]
        left, self.fallback_reason = rollout.episodes, None
        if tags := rollout.es_manager.disturbed_by_threads():
            self.fallback_reason = (
                f"{', '.join(tags)} draws from the process's global random numbers in the main process; give it "
                f"workers (es_manager.use_multiprocessing=true), or say uses_global_rng = False if it does not."
            )
        elif len(units) > 1:
            left = self._overlap(rollout, units)
        if self.fallback_reason is not None:
            log.warning("rollouts do not overlap; using the ordinary loop: %s", self.fallback_reason)
        if left:
            Turns(rollout, [Unit("rollout", left)]).play()

    def _overlap(self, rollout: Rollout, units: Sequence[Unit]) -> list[dict[str, Any]]:
        """Play the shards at the same time; the caches of shards that could not be played to their end.

        Raises:
            ConfigError, EnvError, LaneError: What lockstep would raise too.
        """
        turns = Turns(
            rollout, units, backend=streaming_backend(rollout), shards=Gathering(self.max_batch_size, self.max_wait)
        )
        turns.play()
        errors = [(unit.track, turns.errors[unit]) for unit in units if unit in turns.errors]  # not as they came
        for _, error in errors:
            if isinstance(error, RAISED_ALIKE):
                raise error
        if errors:
            track, error = errors[0]
            self.fallback_reason = f"{track} raised {type(error).__name__}: {error}"
        left = [cache for unit in turns.errors for cache in unit.active]
        return sorted(left, key=lambda cache: cache["env_id"])


class ParallelRolloutManager(RolloutPlayer):
    """A player whose turns overlap, whatever the configuration says.

    Drop-in for the class of this name in RAGEN's forks, and what ``LLMAgentProxy`` is where
    ``agent_proxy.use_parallel_rollout`` is true. A context manager; ``close`` may be called twice.
    """

    def __init__(self, config: Any, actor_rollout_wg: Any, tokenizer: Any, n_jobs: int | None = None) -> None:
        """Take the parts; environments and threads are made when they are first needed.

        Args:
            config: The whole configuration.
            actor_rollout_wg: Who answers; see :class:`~ragen.llm_agent.rollout.player.RolloutPlayer`.
            tokenizer: The actor's tokenizer.
            n_jobs: How many shards; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has an invalid value.
        """
        self.parallel = Shards(config, n_jobs)
        super().__init__(config, actor_rollout_wg, tokenizer, self.parallel)

    parallel_rollout = RolloutPlayer.rollout

    @property
    def proxy(self) -> Self:
        """Itself: the forks' manager has a proxy, this one is what a proxy is."""
        return self

    @property
    def n_jobs(self) -> int:
        """How many shards; -1 for an automatic number."""
        return self.parallel.n_jobs

    @property
    def fallback_reason(self) -> str | None:
        """Why (a part of) the last rollout was played in lockstep; None if it was not."""
        return self.parallel.fallback_reason
