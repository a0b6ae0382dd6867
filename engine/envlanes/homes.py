"""Where environments live: the main process, shared lanes, and quarantine lanes for those that may kill a worker."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf
from time import perf_counter
from weakref import WeakValueDictionary

from envlanes.environments import NOT_LOADED, Environments, EnvRecord
from envlanes.episode.clock import Spent
from envlanes.episode.host import EnvHost
from envlanes.episode.main_deadline import Deadline
from envlanes.episode.main_leftovers import EnvironmentCode, end_processes
from envlanes.episode.outcome import Batch
from envlanes.episode.spec import EnvSpec
from envlanes.kinds import open_pool
from envlanes.lanes.exchange import ask
from envlanes.lanes.lane import Lane, Request
from envlanes.lanes.orders import Order, Unload
from envlanes.lanes.pool import WorkerPool
from envlanes.placement import Limits, Placement
from envlanes.recovery import Rest
from envlanes.repeated_messages import RepeatedMessageFilter
from envlanes.settings import Mode, Settings
from envlanes.stats import QUARANTINE, Costs

_one_at_a_time = threading.RLock()  # environments of different engines may share state in their modules
_LEAST = 0.001  # seconds that each may take to close, since a timer of 0 never rings
_main_homes: WeakValueDictionary[int, MainHome] = (
    WeakValueDictionary()
)  # whose environments may share processes that one of them has started
_NO_DEADLINE: AbstractContextManager[None] = nullcontext()


class MainHome:
    """The environments of one engine that live in the main process.

    Attributes:
        has_deadlines: Whether an environment that takes too long is interrupted; see
            :mod:`envlanes.episode.main_deadline`.
    """

    def __init__(self, has_deadlines: bool, messages: RepeatedMessageFilter) -> None:
        self.has_deadlines = has_deadlines
        self._host = EnvHost(on_late=partial(_say_late, messages))
        _main_homes[id(self)] = self

    def run(self, order: Order, timeout: float, until: float = inf, counts_children: bool = False) -> Batch:
        """Carry out an order here; each item may take ``timeout`` seconds; see :class:`.EnvHost` for the others."""
        with _one_at_a_time, EnvironmentCode(), self._deadline(timeout):
            self._host.until, self._host.counts_children = until, counts_children
            return order.carry_out(self._host)

    def unload(self, env_ids: Iterable[int], timeout: float) -> None:
        """Close environments and forget them."""
        with _one_at_a_time, EnvironmentCode(), self._deadline(timeout):
            self._host.unload(env_ids)

    def close(self, timeout: float) -> None:
        """Close all of them, in ``timeout`` seconds together: each has an equal part of what the others have left."""
        until, env_ids = perf_counter() + timeout, self._host.env_ids
        with _one_at_a_time:
            with EnvironmentCode():
                for waiting, env_id in zip(range(len(env_ids), 0, -1), env_ids, strict=True):
                    part = max(_LEAST, round((until - perf_counter()) / waiting, 3))
                    with Deadline(self._host, part):
                        self._host.unload([env_id])
                self._host.close()
            homes = [ref() for ref in _main_homes.valuerefs()]  # other threads may make more meanwhile
            if not any(home._host.env_ids for home in homes if home is not None):
                end_processes()

    def _deadline(self, timeout: float) -> AbstractContextManager[bool | None]:
        return Deadline(self._host, timeout) if self.has_deadlines else _NO_DEADLINE


def _say_late(messages: RepeatedMessageFilter, spec: EnvSpec, text: str) -> None:
    """Log that an environment hangs, before the others of its batch have played, which may hang as well."""
    where = "in the main process, where each environment waits for the one before"
    cure = "use_multiprocessing=true plays them in workers, and a shorter time limit ends a hang sooner"
    messages.say(f"{spec.describe()} {text} {where}; {cure}.", (spec.tag, "late"))


class Quarantine:
    """A bounded number of lanes, one for each suspect; further suspects wait for room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guests: dict[int, EnvRecord] = {}

    def __contains__(self, lane: Lane | None) -> bool:
        return any(record.lane is lane for record in self._guests.values())

    def admit(self, record: EnvRecord, pool: WorkerPool) -> bool:
        """Give a suspect a lane of its own; returns whether it has one now."""
        if record.env_id in self._guests:
            return True
        if len(self._guests) >= self._most:
            return False
        record.lane = pool.open_extra(f"{QUARANTINE} of env {record.env_id}")
        record.generation, record.in_sync = NOT_LOADED, False
        self._guests[record.env_id] = record
        return True

    def make_room(self, busy: Container[int], pool: WorkerPool) -> None:
        """Release suspects that have nothing to do now, since others wait."""
        self.release([record for env_id, record in self._guests.items() if env_id not in busy], pool)

    def release(self, records: Iterable[EnvRecord], pool: WorkerPool) -> None:
        """Return environments to their homes, to be rebuilt when next needed; their quarantine workers are ended."""
        for record in list(records):
            if self._guests.pop(record.env_id, None) is not None:
                assert record.lane is not None
                pool.close_extra(record.lane)
                record.lane, record.generation, record.in_sync = record.home, NOT_LOADED, False

    def close(self, pool: WorkerPool) -> None:
        """Release all suspects."""
        self.release(self._guests.values(), pool)


class Homes:
    """The homes of one engine's environments.

    Attributes:
        number: The engine's number, by which workers distinguish its environments from those of other engines.
        startup_timeout: Seconds that a worker may take to start.
        main: The main process.
        quarantine: Lanes for environments that may kill their worker.
    """

    def __init__(
        self, number: int, settings: Settings, environments: Environments, messages: RepeatedMessageFilter
    ) -> None:
        self.main = MainHome(settings.use_lanes is not False, messages)
        self.quarantine = Quarantine(settings.workers)
        self.number, self.startup_timeout = number, settings.startup_timeout
        self._settings, self._records = settings, environments.records
        self._pool: WorkerPool | None = None
        self._rests: dict[Lane, Rest] = defaultdict(Rest)
        self._placement = Placement()

    @property
    def pool(self) -> WorkerPool:
        """The process's worker pool, joined on first use."""
        if self._pool is None:
            classes = [record.spec.env_class for record in self._records.values()]
            bases = {base for each in classes for base in (each if isinstance(each, type) else type(each)).__mro__}
            modules = {base.__module__ for base in bases if base.__module__.startswith(self._settings.preloaded)}
            modules.update(*[getattr(each, "preload", ()) for each in classes])  # what they say that workers will need
            preload = ["numpy", *sorted(modules)]
            self._pool = open_pool(self.number, self._settings, preload)
        return self._pool

    def lanes(self, count: int) -> list[Lane]:
        """The first ``count`` lanes of the pool that are not resting; their workers are started."""
        resting = {lane for lane, rest in self._rests.items() if rest.episodes}
        return self.pool.lanes(count, resting) if count else []

    def lane_of_index(self, index: int) -> Lane | None:
        """A lane of the pool, whose worker is started; None if the lane is resting."""
        self.begin_episode()
        return {each.name: each for each in self.lanes(index + 1)}.get(f"worker {index}")

    def for_forks(self, home: Lane | None, count: int, may_start: bool) -> list[Lane | None]:
        """Homes for ``count`` forks of an environment at ``home``: main if ``home`` is main, or the least loaded lanes.

        Lanes are started for them if ``may_start``; otherwise only lanes in use are considered.
        """
        if home is None:
            return [None] * count
        hosted = Counter(record.home for record in self._records.values() if record.home is not None)
        if may_start:
            hosted.update(dict.fromkeys(self.lanes(min(self._settings.workers, hosted.total() + count)), 0))
        homes: list[Lane | None] = []
        for _ in range(count):
            emptiest = min(hosted, key=hosted.__getitem__)
            hosted[emptiest] += 1
            homes.append(emptiest)
        return homes

    # Decisions

    def prepare(self, mode: Mode) -> None:
        """Register the environments to place, and start the workers that the first reset will need."""
        specs = [record.spec for record in self._records.values()]
        self._placement = Placement(specs, self._settings.sequential_env_types, self._limits(mode))
        self.lanes(self._placement.workers_at_start(mode))

    def decide(self, mode: Mode, costs: Mapping[str, Costs], reseeded: Collection[int] = ()) -> None:
        """Place all environments for the episode that begins, by the costs of the last one.

        Those that are ``reseeded`` may move whatever their history.
        """
        if self._pool is not None:
            self._pool.rearrange()
        self._placement.limits = self._limits(mode)
        self._follow(self._placement.at_reset(mode, costs, self._bound_to_main()), reseeded)

    def switch(self, mode: Mode) -> None:
        """Apply a mode that was set in mid-episode."""
        self._placement.limits = self._limits(mode)
        self._follow(self._placement.homes(mode, self._bound_to_main()))

    def before_turn(self, env_ids: Collection[int], costs: Mapping[str, Costs]) -> None:
        """Move those of the environments about to play that belong in workers, by what the episode cost so far."""
        self._placement.before_turn(costs)
        if homes := self._due(env_ids, {tag: each.turns for tag, each in costs.items()}, costs):
            self._follow(homes)

    def within_call(
        self,
        requested: Collection[int],
        left: Collection[int],
        spent: Mapping[str, Spent],
        costs: Mapping[str, Costs] | None,
        reseeded: Collection[int] = (),
    ) -> None:
        """Move what main has yet to play of a call, if it belongs in workers.

        Args:
            requested: The environments that the call plays or resets.
            left: Those that main has yet to play.
            spent: Time that main has spent in this call, by tag.
            costs: Costs of the episode so far; None if the call begins it.
            reseeded: Those that are reset with a seed, and so may move whatever their history.
        """
        self._placement.within_call(requested, spent)
        if homes := self._due(left, spent, costs):
            self._place_at(homes, reseeded)
            for record in map(self._records.__getitem__, homes):
                if record.lane is not None and record.before is None:  # not built yet, which main could do
                    record.before = None, NOT_LOADED

    def _due(
        self, env_ids: Collection[int], spent: Mapping[str, Spent], costs: Mapping[str, Costs] | None
    ) -> dict[int, int | None]:
        """New homes of those of the environments that should move now; starts the workers that they will need."""
        if not self._placement.is_due:
            return {}
        self.lanes(self._placement.workers)
        left = {env_id for env_id in env_ids if self._records[env_id].lane is None}
        moving = self._placement.due(left, spent, costs, self.pool.ready())
        homes = self._placement.homes("auto", self._bound_to_main()) if moving else {}
        return {env_id: homes[env_id] for env_id in moving}

    def reasons(self, mode: Mode, costs: Mapping[str, Costs]) -> dict[str, str]:
        """Where each tag's environments live and why, by tag; ``costs`` are what turns and resets took."""
        records = self._records.values()
        in_lanes = {record.spec.tag for record in records if record.lane is not None}
        held: dict[str, str] = {}
        if episodes := min((rest.episodes for rest in self._rests.values() if rest.episodes), default=0):
            text = f"workers do not start; next attempt in {episodes} episode{'s' if episodes > 1 else ''}"
            held = {record.spec.tag: text for record in records if not self._is_sequential(record)}
        why = self._settings.why_sequential
        held |= {record.spec.tag: why[record.spec.env_type] for record in records if record.spec.env_type in why}
        held |= {record.spec.tag: "does not work in a worker" for record in records if record.bound_to_main}
        return self._placement.reasons(in_lanes, held, costs, mode)

    def _is_sequential(self, record: EnvRecord) -> bool:
        return record.spec.env_type in self._settings.sequential_env_types

    def _limits(self, mode: Mode) -> Limits:
        """How many lanes there may be; queries a cluster for its capacity unless the mode uses no lanes."""
        if self._settings.backend != "ray" or mode is False:
            return Limits.here(self._settings)
        kind = self.pool.kind
        return Limits(self._settings.max_workers or kind.slots, kind.slots, kind.round_trip_s)

    def _follow(self, homes: Mapping[int, int | None], reseeded: Collection[int] = ()) -> None:
        for record in self._records.values():
            origin = record.origin
            if origin is not None and origin in homes and (homes[origin] is None) != (record.home is None):
                homes = {**homes, record.env_id: homes[origin]}
        self._place_at(homes, reseeded)

    def _place_at(self, homes: Mapping[int, int | None], reseeded: Collection[int]) -> None:
        lanes = self.lanes(max((index + 1 for index in homes.values() if index is not None), default=0))
        chosen = {each: lanes[i % len(lanes)] if i is not None and lanes else None for each, i in homes.items()}
        self.place(chosen, reseeded)

    def _bound_to_main(self) -> set[int]:
        return {env_id for env_id, record in self._records.items() if record.bound_to_main}

    # Moves

    def place(self, homes: Mapping[int, Lane | None], reseeded: Collection[int] = ()) -> None:
        """Set the homes of environments, None for main; one whose home changes is rebuilt there when next used.

        An environment that cannot be rebuilt stays, unless it is about to be ``reseeded``.
        """
        records = self._records
        moved = [
            records[env_id]
            for env_id, home in homes.items()
            if (records[env_id].lane is not home or records[env_id].is_suspect)
            and (env_id in reseeded or records[env_id].can_move)
        ]
        leaving = []
        for record in moved:
            if record.before is not None and record.before[0] is homes[record.env_id]:
                self.take_back(record)
            elif record.stands and record.before is None and not record.is_suspect:
                record.before = record.lane, record.generation
                record.in_sync, record.generation = False, NOT_LOADED
            else:
                leaving.append(record)
        self._unload(leaving)
        for record in moved:
            record.home = record.lane = homes[record.env_id]
            record.is_suspect = False

    def readmit(self, records: Iterable[EnvRecord], reseeded: Collection[int] = ()) -> None:
        """Return those of these environments that are in quarantine to their homes."""
        self.place({record.env_id: record.home for record in records if record.is_suspect}, reseeded)

    def take_back(self, record: EnvRecord) -> None:
        """Return an environment to the replica that it was to move from; the new one is closed."""
        assert record.before is not None
        self._unload([record])
        (lane, generation), record.before = record.before, None
        record.home = record.lane = lane
        record.generation, record.in_sync, record.is_suspect = generation, True, False

    def let_go(self, moved: Mapping[int, tuple[Lane | None, int]]) -> None:
        """Close replicas that environments have moved from: lane and generation, by env_id."""
        leaving: dict[Lane, list[int]] = defaultdict(list)
        for env_id, (lane, generation) in moved.items():
            if lane is None:
                self.main.unload([env_id], self._settings.step_timeout)
            elif generation == lane.current:
                leaving[lane].append(env_id)
        self._ask_to_unload(leaving)

    def move_to_main(self, records: Iterable[EnvRecord]) -> None:
        """Make main the home of these environments."""
        self.place({record.env_id: None for record in records})

    def evict(self, records: Iterable[EnvRecord]) -> None:
        """Close the replicas of environments that are leaving, or are to be built again."""
        leaving = list(records)
        self._unload(leaving)
        moved = {record.env_id: record.before for record in leaving if record.before is not None}
        for record in leaving:
            record.before = None
        self.let_go(moved)

    def _unload(self, records: Iterable[EnvRecord]) -> None:
        """Close the replicas where environments live now."""
        leaving: dict[Lane, list[int]] = defaultdict(list)
        guests = []
        for record in list(records):
            was_loaded = record.is_loaded
            record.in_sync, record.generation = False, NOT_LOADED  # first: closing it may be interrupted
            if record.lane is None:
                self.main.unload([record.env_id], self._settings.step_timeout)
                continue
            if was_loaded:
                leaving[record.lane].append(record.env_id)
            if record.is_suspect:
                guests.append(record)
        self._ask_to_unload(leaving)
        if guests:
            self.quarantine.release(guests, self.pool)

    def _ask_to_unload(self, leaving: Mapping[Lane, list[int]]) -> None:
        if leaving:
            timeout = self._settings.step_timeout
            ask(
                {
                    lane: Request(
                        self.number,
                        Unload([(env_id, None) for env_id in env_ids]),
                        timeout,
                        self.startup_timeout,
                        lane.current,
                    )
                    for lane, env_ids in leaving.items()
                }
            )

    # Lanes whose workers do not start

    def leave_alone(self, lane: Lane) -> int:
        """Stop using a lane for a while; returns for how many episodes."""
        self._rests[lane].begin()
        return self._rests[lane].episodes

    def begin_episode(self) -> None:
        """Count an episode for resting lanes, and clear the rest of lanes whose workers have started since."""
        for lane, rest in list(self._rests.items()):
            rest.pass_episode()
            if lane.pid is not None:
                del self._rests[lane]

    def close(self, forgotten: bool) -> None:
        """Leave the pool, whose workers end if no other engine uses them; see :meth:`Engine.close`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self.quarantine.close(pool)
            pool.leave(self.number, later=forgotten)
