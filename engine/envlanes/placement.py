"""The homes of environments: the main process and workers.

``use_multiprocessing: true`` sends all environments to workers but those of ``sequential_env_types`` and those that
turned out not to work there, ``false`` keeps all in the main process, and ``auto`` decides by tag
(:mod:`envlanes.auto`). An environment moves by being rebuilt in its new home, and the replica that it leaves stays open
until the new one has returned a result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from envlanes.auto import Auto, WorkerLimits, spread
from envlanes.environments import NOT_LOADED, Environments, EnvRecord
from envlanes.episode.in_main import MainHome
from envlanes.episode.spec import EnvSpec
from envlanes.kinds import open_pool
from envlanes.settings import Mode
from envlanes.stats import Costs
from envlanes.this_process import usable_cpus
from envlanes.workers.orders import Unload
from envlanes.workers.pool import WorkerPool
from envlanes.workers.worker import Request, Worker, ask

Home = Worker | None
"""A worker, or None for the main process."""


class Placement:
    """The homes of one engine's environments.

    Attributes:
        number: The engine's number, by which workers distinguish its environments from those of other engines.
        main: The main process.
        mode: ``use_multiprocessing``.
    """

    def __init__(self, number: int, environments: Environments) -> None:
        self.number, self.main = number, MainHome()
        self.mode: Mode = environments.settings.use_lanes
        self.main.has_deadlines = self.mode is not False
        self._environments, self._records = environments, environments.records
        self._settings = environments.settings
        self._pool: WorkerPool | None = None
        self._auto = Auto(WorkerLimits(None, 0))

    @property
    def pool(self) -> WorkerPool:
        """The process's worker pool, joined on first use."""
        if self._pool is None:
            classes = {record.spec.env_class for record in self._records.values()}
            modules = {each.__module__ for each in classes if each.__module__.startswith(self._settings.preloaded)}
            modules |= {type(record.spec.game).__module__ for record in self._records.values()}
            # Sorted below: a set of texts has another order in each run, and an import may depend on those before it.
            modules.update(*[getattr(each, "preload", ()) for each in classes])  # modules that a class asks for
            self._pool = open_pool(self.number, self._settings, ["numpy", *sorted(modules)])
        return self._pool

    def workers(self, count: int) -> list[Worker]:
        """The first ``count`` workers of the pool; their processes are started."""
        return self.pool.workers(count) if count else []

    # Decisions

    def decide(self, costs: Mapping[str, Costs], reseeded: Collection[int] = ()) -> None:
        """Place all environments for the episode that begins, by the costs of the last one.

        Those that are ``reseeded`` may move whatever their history.
        """
        if self._pool is not None:
            self._pool.rearrange()  # first: workers that move to a better node are started there by `_homes`
        self._read_limits()
        self._auto.at_reset(self._movable(), costs)
        self.place(self._homes(), reseeded)

    def switch(self, mode: Mode) -> None:
        """Apply a mode that was set in mid-episode."""
        self.mode, self.main.has_deadlines = mode, mode is not False
        self._read_limits()
        self.place(self._homes())

    def reconsider(
        self,
        left: Collection[int],
        spent: Mapping[str, Costs],
        so_far: Mapping[str, Costs],
        reseeded: Collection[int] = (),
    ) -> None:
        """Under ``auto``, before and within a call: move environments in main that belong in workers.

        Args:
            left: The environments that the call has yet to play or to reset.
            spent: Costs that decide, by tag: of the episode, or of what main has played in this call.
            so_far: Costs of the episode; empty if the call begins it.
            reseeded: Those that are reset with a seed, and so may move whatever their history.
        """
        self._auto.consider(spent, left)
        if not self._auto.is_due:
            return
        self.workers(self._auto.most)  # start now, and are up at one of the next looks
        in_main = {env_id for env_id in left if self._records[env_id].worker is None}
        moving = self._auto.due(in_main, spent, so_far, self.pool.ready())
        if moving:
            self.settle(moving, reseeded)
            for record in self._environments.of(moving):
                if record.worker is not None and record.before is None:  # not built yet, which main could do
                    record.before = None, NOT_LOADED

    def settle(self, env_ids: Iterable[int], reseeded: Collection[int] = ()) -> None:
        """Place some environments as far as is decided; those that are pinned stay."""
        # Of all homes, although few move: an environment must come to the worker that the next reset gives it too, or
        # it would be rebuilt there again.
        homes = self._homes()
        self.place({env_id: homes[env_id] for env_id in env_ids if env_id in homes}, reseeded)

    def _homes(self) -> dict[int, Home]:
        """The home of each environment that may move, as far as is decided."""
        homes: dict[int, Home] = {i: None for i, record in self._records.items() if not record.is_pinned}
        if self.mode is not False:
            away = [spec for spec in self._movable() if self.mode is True or spec.tag in self._auto.workers]
            workers = self.workers(min(self._auto.limits.most if self.mode is True else self._auto.most, len(away)))
            homes |= {env_id: workers[part] for env_id, part in spread(away, len(workers)).items()}
        return homes

    def _movable(self) -> list[EnvSpec]:
        records = [each for each in self._records.values() if not each.is_pinned and not each.bound_to_main]
        sequential = self._settings.sequential_env_types
        return [record.spec for record in records if record.spec.env_type not in sequential]

    def _read_limits(self) -> None:
        """Read how many workers there may be; queries a cluster for its capacity unless the mode uses no workers."""
        most = self._settings.max_workers
        if self._settings.backend != "ray" or self.mode is False:
            self._auto.limits = WorkerLimits(most, self._settings.workers if most is None else usable_cpus())
        else:
            kind = self.pool.kind
            self._auto.limits = WorkerLimits(most or kind.slots, kind.slots, kind.round_trip_s)

    # Moves

    def place(self, homes: Mapping[int, Home], reseeded: Collection[int] = ()) -> None:
        """Set the homes of environments; one whose home changes is rebuilt there when next used.

        An environment that cannot be rebuilt stays, unless it is about to be ``reseeded``.
        """
        moving = [
            record
            for record in self._environments.of(homes)
            if record.worker is not homes[record.env_id] and (record.env_id in reseeded or record.can_move)
        ]
        leaving = []
        for record in moving:
            if record.before is not None and record.before[0] is homes[record.env_id]:
                self.undo_move(record)
            elif record.is_live and record.before is None:
                # A healthy replica stays open until the next one has played: else a worker that fails to start, or to
                # build it, would cost an episode that nothing was wrong with.
                record.before = record.worker, record.generation
                record.in_sync, record.generation = False, NOT_LOADED
            else:
                leaving.append(record)
        self._unload(leaving)
        for record in moving:  # last: until here, an interrupt leaves them where they are, to be rebuilt
            record.worker = homes[record.env_id]

    def undo_move(self, record: EnvRecord) -> None:
        """Return an environment to the replica that it was to move from; the new one is closed."""
        assert record.before is not None
        # Closed before `before` is cleared: an interrupt in between leaves a move that can be taken back again.
        self._unload([record])
        (worker, generation), record.before = record.before, None
        record.worker = worker
        record.generation, record.in_sync = generation, True

    def evict(self, records: Collection[EnvRecord]) -> None:
        """Close the replicas of environments that are leaving, or are to be built again."""
        self._unload(records)
        moved = {record.env_id: record.before for record in records if record.before is not None}
        for record in records:
            record.before = None
        self.close_replicas(moved)

    def _unload(self, records: Iterable[EnvRecord]) -> None:
        """Close the replicas where environments live now."""
        replicas: dict[int, tuple[Home, int]] = {}
        for record in records:
            replicas[record.env_id] = record.worker, record.generation
            # First, since closing it may be interrupted: a replica that may be closed is not in sync.
            record.in_sync, record.generation = False, NOT_LOADED
        self.close_replicas(replicas)

    def close_replicas(self, replicas: Mapping[int, tuple[Home, int]]) -> None:
        """Close replicas that environments have moved from: worker and generation, by env_id."""
        timeout, startup = self._settings.step_timeout, self._settings.startup_timeout
        leaving: dict[Home, list[tuple[int, None]]] = defaultdict(list)
        for env_id, (worker, generation) in replicas.items():
            if worker is None or generation == worker.current:
                leaving[worker].append((env_id, None))
        requests: dict[Worker, Request] = {}
        for worker, items in leaving.items():
            if worker is None:
                self.main.run(Unload(items).carry_out, timeout)
            else:
                requests[worker] = Request(self.number, Unload(items), timeout, startup, worker.current)
        ask(requests)

    def close(self, forgotten: bool) -> None:
        """Close the environments, and the workers too if no other engine uses them."""
        if self._pool is not None:
            self._pool.leave(self.number, later=forgotten)
