"""Where environments live: the lanes that an engine uses, and what it takes to move an environment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from ragen.parallel.env_record import NOT_LOADED, EnvRecord
from ragen.parallel.kinds import open_pool
from ragen.parallel.lanes.exchange import ask
from ragen.parallel.lanes.lane import Lane, Request
from ragen.parallel.lanes.orders import Unload
from ragen.parallel.lanes.pool import WorkerPool
from ragen.parallel.main_home import MainHome
from ragen.parallel.placement import Limits, Placement, Spread
from ragen.parallel.quarantine import Quarantine
from ragen.parallel.recovery import Rest
from ragen.parallel.settings import Mode, Settings
from ragen.parallel.stats import Episode


class Homes:
    """The lanes of one engine, and its quarantine.

    Attributes:
        quarantine: Lanes for those that may kill their worker.
    """

    def __init__(self, number: int, settings: Settings, records: Mapping[int, EnvRecord], main: MainHome) -> None:
        self.quarantine = Quarantine(settings.workers)
        self._number, self._settings, self._records = number, settings, records
        self._main = main
        self._pool: WorkerPool | None = None
        self._rests: dict[Lane, Rest] = defaultdict(Rest)
        self._placement = Placement()

    @property
    def pool(self) -> WorkerPool:
        """The pool of this process that the lanes are of; joined now if it was not yet."""
        if self._pool is None:
            classes = [record.spec.env_class for record in self._records.values()]
            modules = {
                module for each in classes if (module := getattr(each, "__module__", "")).startswith("ragen.env.")
            }
            modules.update(*[getattr(each, "preload", ()) for each in classes])  # what they say that workers will need
            preload = ["numpy", *sorted(modules)]
            self._pool = open_pool(self._number, self._settings, preload)
        return self._pool

    def lanes(self, count: int) -> list[Lane]:
        """The first ``count`` lanes of the pool, their workers starting; without those at rest."""
        resting = {lane for lane, rest in self._rests.items() if rest.episodes}
        return self.pool.lanes(count, resting) if count else []

    def lane_of_index(self, index: int) -> Lane | None:
        """A lane of the pool, its worker starting; None if it is at rest."""
        self.begin_episode()
        return {each.name: each for each in self.lanes(index + 1)}.get(f"lane {index}")

    def for_forks(self, home: Lane | None, count: int, may_start: bool) -> list[Lane | None]:
        """Homes for so many forks of what lives at ``home``: main, if that is it, or the lanes that host the fewest.

        Lanes are started for them if they may be; else there are those in use.
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

    def prepare(self, mode: Mode, spread: Spread) -> None:
        """Know which environments are to be placed; workers that the first reset will need start now."""
        specs = [record.spec for record in self._records.values()]
        self._placement = Placement(specs, self._settings.sequential_env_types, self._limits(mode), spread)
        self.lanes(self._placement.lanes_at_start(mode))

    def decide(self, mode: Mode, episode: Episode) -> None:
        """An episode of all environments begins: give them their homes, by what was measured in the last one."""
        if self._pool is not None:
            self._pool.rearrange()
        self._placement.limits = self._limits(mode)
        homes = self._placement.at_reset(mode, episode, self._bound_to_main(), self._ready())
        self.lanes(self._placement.lanes_to_start)
        self._follow(homes)

    def switch(self, mode: Mode) -> None:
        """The mode was set in mid-episode."""
        self._placement.limits = self._limits(mode)
        self._follow(self._placement.at_switch(mode, self._bound_to_main()))

    def may_look_again(self, episode: Episode) -> bool:
        """Whether it is time for :meth:`look_again`, as it seldom is."""
        return self._placement.may_look_again(len(episode.calls))

    def look_again(self, episode: Episode) -> None:
        """Before a turn under ``auto``: move what the episode so far shows to be at the wrong home."""
        homes = self._placement.before_turn(episode, self._bound_to_main(), self._ready())
        self.lanes(self._placement.lanes_to_start)
        if homes is not None:
            self._follow(homes)

    def look_within(self, episode: Episode, left: Collection[int], is_reset: bool) -> None:
        """Within a call of the first episode: move what it has left to where the episode so far shows that it pays."""
        homes = self._placement.within_call(episode, left, is_reset, self._bound_to_main(), self._ready())
        self.lanes(self._placement.lanes_to_start)
        if homes is not None:
            self._place_at(homes)

    def piece(self, episode: Episode, records: Sequence[EnvRecord], is_reset: bool) -> list[EnvRecord]:
        """Those that main plays before it looks again."""
        chosen = {spec.env_id for spec in self._placement.piece(episode, [each.spec for each in records], is_reset)}
        return [record for record in records if record.env_id in chosen]

    def reasons(self, episode: Episode) -> dict[str, str]:
        """Where each tag's environments live and why, by tag."""
        records = self._records.values()
        in_lanes = {record.spec.tag for record in records if record.lane is not None}
        held: dict[str, str] = {}
        if episodes := min((rest.episodes for rest in self._rests.values() if rest.episodes), default=0):
            text = f"workers do not start, tried again in {episodes} episode{'s' if episodes > 1 else ''}"
            held = {record.spec.tag: text for record in records}
        held |= {record.spec.tag: "does not work in a worker" for record in records if record.bound_to_main}
        return self._placement.reasons(in_lanes, held, episode)

    def _limits(self, mode: Mode) -> Limits:
        """How many lanes there may be; a cluster is asked how many it has room for, unless lanes are not wanted."""
        if self._settings.backend != "ray" or mode is False:
            return Limits.here(self._settings, mode)
        kind, turns = self.pool.kind, self._settings.max_turns
        return Limits(self._settings.max_workers or kind.slots, kind.slots + 1, kind.round_trip_s, turns)

    def _follow(self, homes: Mapping[int, int | None]) -> None:
        for record in self._records.values():
            origin = record.origin
            if origin is not None and origin in homes and (homes[origin] is None) != (record.home is None):
                homes = {**homes, record.env_id: homes[origin]}
        self._place_at(homes)

    def _place_at(self, homes: Mapping[int, int | None]) -> None:
        lanes = self.lanes(max((index + 1 for index in homes.values() if index is not None), default=0))
        self.place({each: lanes[i % len(lanes)] if i is not None and lanes else None for each, i in homes.items()})

    def _ready(self) -> int:
        """How many lanes can be used without waiting for their start."""
        return self._pool.ready() if self._pool is not None else 0

    def _bound_to_main(self) -> set[int]:
        return {env_id for env_id, record in self._records.items() if record.bound_to_main}

    # Moves

    def place(self, homes: Mapping[int, Lane | None]) -> None:
        """Give environments their homes, None for main; one whose home changes is rebuilt there when next used."""
        records = self._records
        moved = [
            records[env_id]
            for env_id, home in homes.items()
            if (records[env_id].lane is not home or records[env_id].is_suspect) and records[env_id].can_move
        ]
        self.evict(moved)
        for record in moved:
            record.home = record.lane = homes[record.env_id]
            record.is_suspect = False

    def move_to_main(self, records: Iterable[EnvRecord]) -> None:
        """Make main the home of these environments."""
        self.place({record.env_id: None for record in records})

    def evict(self, records: Iterable[EnvRecord]) -> None:
        """Close replicas at homes that are about to be left."""
        leaving: dict[Lane, list[int]] = defaultdict(list)
        guests = []
        for record in list(records):
            was_loaded = record.is_loaded
            record.in_sync, record.generation = False, NOT_LOADED  # first: closing it may be interrupted
            if record.lane is None:
                self._main.unload([record.env_id], self._settings.step_timeout)
            elif record.is_suspect:
                guests.append(record)
            elif was_loaded:
                leaving[record.lane].append(record.env_id)
        if guests:
            self.quarantine.release(guests, self.pool)
        if leaving:
            timeout = self._settings.step_timeout
            ask(
                {
                    lane: Request(self._number, Unload(env_ids), timeout, generation=lane.current)
                    for lane, env_ids in leaving.items()
                }
            )

    # Lanes whose workers do not start

    def leave_alone(self, lane: Lane) -> int:
        """Do not use a lane for a while; the number of episodes."""
        self._rests[lane].begin()
        return self._rests[lane].episodes

    def begin_episode(self) -> None:
        """Lanes have rested for one more episode; those whose workers were started since are as good as any."""
        for lane, rest in list(self._rests.items()):
            rest.pass_episode()
            if lane.pid is not None:
                del self._rests[lane]

    def close(self, forgotten: bool) -> None:
        """Leave the pool, whose workers end if no other engine uses them; see :meth:`EnvEngine.close`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self.quarantine.close(pool)
            pool.leave(self._number, later=forgotten)
