"""Several engines behind one manager, so that several threads may play turns at the same time.

                   EnvStateManager (seeds, statuses, caches: one entry per environment)
                                         |
                                   ShardedEngine
                       /                 |                 \
                Engine of shard 0   Engine of shard 1   Engine of shard 2
                       |                 |                 |
                    lane 0            lane 1            lane 2         of the process's one pool

An engine's rounds are one thread's business. Here each shard's environments have an engine of their own, and every
environment belongs to one shard, so threads that keep to their shards share nothing but the pool, whose lanes have
locks, and the main process. There environments are played by one thread at a time: they may share what their modules
keep. Lanes are dealt out by shard, for a lane is locked for the length of an exchange.

Whatever concerns all shards (reset, moves, the end) is one thread's business here too.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ragen.parallel.accounts import Accounts, CallTime, LaneStats
from ragen.parallel.costs import CostMeter
from ragen.parallel.engine import Engine, EngineSettings, Take
from ragen.parallel.host import EnvHost, Outcome, ResetOrder
from ragen.parallel.placement import spread
from ragen.parallel.pool import Lane
from ragen.parallel.residents import GivenUp
from ragen.parallel.turn import EnvSpec, Observation, TurnRequest, TurnResult

Item = TypeVar("Item")
_main_lock = threading.RLock()


class ShardedEngine(Engine):
    """An :class:`~ragen.parallel.engine.Engine` made of engines, one per shard; same verbs, same answers.

    Attributes:
        shards: The environment ids of each shard.
    """

    def __init__(self, specs: Iterable[EnvSpec], settings: EngineSettings, shards: int) -> None:
        """Know the environments.

        Args:
            specs: All environments.
            settings: Those of every shard's engine.
            shards: How many parts to make; fewer if there are fewer environments. Every tag is spread evenly over
                them, and groups stay whole where that stays even.
        """
        self._specs = {spec.env_id: spec for spec in specs}
        self.settings = settings
        self._shard_of = _shard_indices(list(self._specs.values()), shards)
        members: dict[int, list[EnvSpec]] = defaultdict(list)
        for env_id, index in self._shard_of.items():
            members[index].append(self._specs[env_id])
        self.shards = [[spec.env_id for spec in members[index]] for index in sorted(members)]
        self._engines = [Engine(members[index], settings) for index in sorted(members)]
        self.accounts = Accounts()
        self.accounts.costs.update({spec.tag: CostMeter() for spec in self.specs()})
        for engine in self._engines:
            engine.accounts.costs = (
                self.accounts.costs
            )  # counted by several threads: a lost turn does no harm to a mean
            engine._told = self._engines[0]._told
            engine._main = _SharedMain()

    # Homes

    def lanes(self, count: int) -> list[Lane]:
        """See :class:`Engine`; every shard becomes a user of the pool, and a lane at rest for one is so for all."""
        first, *others = [engine.lanes(count) for engine in self._engines]
        return [lane for lane in first if all(lane in lanes for lanes in others)]

    @property
    def has_pool(self) -> bool:
        """See :class:`Engine`."""
        return any(engine.has_pool for engine in self._engines)

    def calls(self) -> list[CallTime]:
        """See :class:`Engine`; each shard's calls are its own."""
        return [call for engine in self._engines for call in engine.calls()]

    def specs(self) -> list[EnvSpec]:
        """See :class:`Engine`."""
        return list(self._specs.values())

    def spec(self, env_id: int) -> EnvSpec:
        """See :class:`Engine`."""
        return self._specs[env_id]

    def observation(self, env_id: int) -> Observation:
        """See :class:`Engine`."""
        return self._engine(env_id).observation(env_id)

    def has_lane(self, env_ids: Iterable[int]) -> bool:
        """See :class:`Engine`."""
        return any(self._engine(env_id).has_lane([env_id]) for env_id in env_ids)

    def home(self, env_id: int) -> str:
        """See :class:`Engine`."""
        return self._engine(env_id).home(env_id)

    def lives_in_lane(self, tag: str) -> bool:
        """See :class:`Engine`."""
        return any(engine.lives_in_lane(tag) for engine in self._engines)

    def rest(self) -> int:
        """See :meth:`Engine.rest`."""
        return min((rest for engine in self._engines if (rest := engine.rest())), default=0)

    def is_bound_to_main(self, env_id: int) -> bool:
        """See :class:`Engine`."""
        return self._engine(env_id).is_bound_to_main(env_id)

    def place(self, homes: Mapping[int, Lane | None]) -> None:
        """See :class:`Engine`; who lives in main is taken as said, and lanes are dealt out by shard."""
        lanes = sorted({home for home in homes.values() if home is not None}, key=lambda lane: lane.order)
        for index, engine in enumerate(self._engines):
            mine = [env_id for env_id in self.shards[index] if env_id in homes]
            away = [self._specs[env_id] for env_id in mine if homes[env_id] is not None]
            given: dict[int, Lane | None] = dict.fromkeys(mine)
            if away:
                own = _share(lanes, index, len(self._engines))
                given.update({env_id: own[place] for env_id, place in spread(away, len(own)).items()})
            engine.place(given)

    def add(self, spec: EnvSpec, home: Lane | None = None) -> None:
        """See :class:`Engine`; it joins the shard of its group, or else the smallest one."""
        mates = [self._shard_of[other.env_id] for other in self.specs() if other.group_id == spec.group_id]
        index = mates[-1] if mates else min(range(len(self.shards)), key=lambda shard: len(self.shards[shard]))
        self._engines[self._shard_of.get(spec.env_id, index)].add(spec, home)
        self._specs[spec.env_id], self._shard_of[spec.env_id] = spec, index
        self.shards[index].append(spec.env_id)

    def remove(self, env_ids: Iterable[int]) -> None:
        """See :class:`Engine`."""
        for env_id in [env_id for env_id in env_ids if env_id in self._specs]:
            self._engine(env_id).remove([env_id])
            self.shards[self._shard_of.pop(env_id)].remove(env_id)
            del self._specs[env_id]

    def begin_episode(self) -> None:
        """See :class:`Engine`."""
        for engine in self._engines:
            engine.begin_episode()

    def in_main(self) -> list[EnvSpec]:
        """The environments that are at home in the main process now."""
        return [spec for spec in self._specs.values() if not self._engine(spec.env_id).has_lane([spec.env_id])]

    # What is asked of environments

    def reset(self, orders: Sequence[ResetOrder]) -> list[Observation]:
        """See :class:`Engine`; the shards' environments are reset at the same time."""
        return self._at_once(lambda engine, mine: engine.reset(mine), orders, lambda order: order.env_id)

    def play(self, requests: Sequence[TurnRequest], take: Take | None = None) -> list[TurnResult | GivenUp]:
        """See :class:`Engine`; may be called by several threads for requests of different shards, and may call so."""
        return self._at_once(lambda engine, mine: engine.play(mine, take), requests, lambda request: request.env_id)

    def call(self, env_ids: Sequence[int], name: str, *arguments: Any) -> list[Any]:
        """See :class:`Engine`."""
        return self._at_once(lambda engine, mine: engine.call(mine, name, *arguments), env_ids, lambda env_id: env_id)

    def commit(self, request: TurnRequest, result: TurnResult) -> None:
        """See :class:`Engine`."""
        self._engine(request.env_id).commit(request, result)

    def revoke(self, request: TurnRequest) -> None:
        """See :class:`Engine`."""
        self._engine(request.env_id).revoke(request)

    def give_up_result(self, request: TurnRequest, given_up: GivenUp) -> TurnResult:
        """See :class:`Engine`."""
        return self._engine(request.env_id).give_up_result(request, given_up)

    def rollout_info(self, env_ids: Sequence[int]) -> list[dict[str, Any]]:
        """See :class:`Engine`; may be called by several threads for environments of different shards."""
        return self._at_once(lambda engine, mine: engine.rollout_info(mine), env_ids, lambda env_id: env_id)

    # Accounts

    def stats(self) -> list[LaneStats]:
        """See :class:`Engine`; what the shards did in the same lane is added up."""
        merged: dict[str, LaneStats] = {}
        for engine in self._engines:
            for stats in engine.stats():
                merged[stats.lane] = _sum(merged[stats.lane], stats) if stats.lane in merged else stats
        return [merged.pop("main"), *(merged[name] for name in sorted(merged))]

    def shard_stats(self, shard: int) -> list[LaneStats]:
        """What each home has done for one shard."""
        return self._engines[shard].stats()

    def close(self, forgotten: bool = False) -> None:
        """See :class:`Engine`."""
        for engine in self._engines:
            engine.close(forgotten)

    # Parts

    def _engine(self, env_id: int) -> Engine:
        return self._engines[self._shard_of[env_id]]

    def _at_once(
        self, work: Callable[[Engine, list[Item]], list[Any]], items: Sequence[Item], env_id_of: Callable[[Item], int]
    ) -> list[Any]:
        """Let each shard's engine work on its items; the values in the order of the items."""
        by_shard: dict[int, list[int]] = defaultdict(list)
        for position, item in enumerate(items):
            by_shard[self._shard_of[env_id_of(item)]].append(position)
        calls = [partial(work, self._engines[shard], [items[p] for p in found]) for shard, found in by_shard.items()]
        values: list[Any] = [None] * len(items)
        for found, given in zip(by_shard.values(), _together(calls), strict=True):
            for position, value in zip(found, given, strict=True):
                values[position] = value
        return values


class _SharedMain(EnvHost):
    """A host in the main process beside others: one thread at a time plays there, whichever shard it is of.

    Nobody who holds the lock waits for a lane, so it may be waited for while lanes are held.
    """

    def _each(self, items: Sequence[Any], phase: str, work: Callable[[Any], Any], first: int = 0) -> list[Outcome]:
        with _main_lock:
            return super()._each(items, phase, work, first)

    def discard(self, env_ids: Iterable[int]) -> None:
        with _main_lock:
            super().discard(env_ids)


def _together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call all at the same time, a thread each; raises the first failure in order, when all have ended."""
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(max(1, len(calls)), thread_name_prefix="ragen-shard") as threads:
        futures = [threads.submit(call) for call in calls]
    return [future.result() for future in futures]


def _shard_indices(specs: Sequence[EnvSpec], shards: int) -> dict[int, int]:
    """Shard by env_id, counted without gaps."""
    raw = spread(specs, max(1, min(shards, len(specs))))
    known = {index: place for place, index in enumerate(sorted(set(raw.values())))}
    return {spec.env_id: known[raw[spec.env_id]] for spec in specs}


def _share(lanes: Sequence[Lane], index: int, shards: int) -> Sequence[Lane]:
    """The lanes of one shard: several of its own, or one that it shares with others."""
    if len(lanes) <= shards:
        return [lanes[index % len(lanes)]]
    return lanes[index * len(lanes) // shards : (index + 1) * len(lanes) // shards]


def _sum(one: LaneStats, other: LaneStats) -> LaneStats:
    types = tuple(sorted({*one.env_types, *other.env_types}))
    pid = one.pid if one.pid is not None else other.pid
    turns, busy = one.turns + other.turns, one.busy_s + other.busy_s
    return LaneStats(one.lane, pid, types, one.envs + other.envs, turns, busy, one.restarts + other.restarts)
