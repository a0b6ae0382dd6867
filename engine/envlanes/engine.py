"""The engine: environments with one live replica each, in the main process or in a lane, that survive failures.

        ids -> requests                                          ids -> results
               |                                                          ^
               v                                                          |
    +------------------------------- Engine ----------------------------------+
    |  records: where each environment lives, its journal, whether it is in sync |
    |  Round: asks, retries, decides (envlanes.round, .recovery)           |
    |  commit: journals are written, once, when the round has come back          |
    +----------------------------------------------------------------------------+
               |                     |                            |
          EnvHost in main       shared lanes              quarantine lanes

An environment is *in sync* when its replica is exactly at the end of its journal (``docs/architecture.md``).

Any subset of the environments may be reset, played or called at any time. Several threads may do so at once if their
environments are disjoint. The main process plays for one thread at a time, and enforces deadlines in its main thread
only.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from envlanes import fork
from envlanes.closing import Closing
from envlanes.environments import EnvFailed, Environments, EnvRecord
from envlanes.episode import program
from envlanes.episode.host import ResetOrder
from envlanes.episode.journal import Change
from envlanes.episode.spec import EnvSpec
from envlanes.episode.values import copied
from envlanes.errors import ForkError, StateError
from envlanes.failures import Asked, Failures, OnFailure, say_nothing
from envlanes.homes import Homes
from envlanes.interrupts import holds_interrupts
from envlanes.lanes.orders import Build, Call, Fork, Play, Reset
from envlanes.repeated_messages import RepeatedMessageFilter
from envlanes.round import Round
from envlanes.settings import Mode, Settings
from envlanes.stats import LaneStats, Stats, Work, home_name

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Engine(Closing):
    """Environments, wherever they live; a context manager.

    Attributes:
        settings: The engine's settings.
        environments: The record of each environment, and which calls are using them.
        records: These records by env_id.
        homes: Where environments live.
        messages, stats_book, failures: Logging, statistics, and failure handling.
    """

    def __init__(
        self,
        specs: Iterable[EnvSpec] = (),
        settings: Settings | None = None,
        *,
        on_failure: OnFailure = say_nothing,
    ) -> None:
        """Register the environments, build none, and start the workers that the first reset needs.

        Args:
            specs: The environments.
            settings: The engine's settings; the defaults if omitted.
            on_failure: Called with each failure of an environment; the text it returns is added to the message.

        Raises:
            StateError: Called inside a worker process; or two environments have the same id.
        """
        if program.in_worker:
            raise StateError(
                "an Engine or EnvStateManager was created inside a worker process: a module that defines an "
                "environment creates one on import. Put that code under `if __name__ == '__main__':`."
            )
        self.settings = settings or Settings()
        self._use_lanes: Mode = self.settings.use_lanes
        self.environments = Environments()
        self.records = self.environments.records
        self.messages = RepeatedMessageFilter(log)
        self.stats_book = Stats(self.environments)
        number = next(_numbers)  # never used twice in this process
        self.homes = Homes(number, self.settings, self.environments, self.messages)
        self.failures = Failures(
            self.settings, self.environments, self.homes, self.stats_book, self.messages, on_failure
        )
        for spec in specs:
            self.add(spec)
        log.debug("%d environments: %s", len(self.records), self.settings)
        self.homes.prepare(self._use_lanes)

    # Environments

    @property
    def env_ids(self) -> list[int]:
        """The ids of all environments."""
        return list(self.records)

    def spec(self, env_id: int) -> EnvSpec:
        """The environment's specification."""
        return self.records[env_id].spec

    def observation(self, env_id: int) -> Any:
        """The environment's last observation; ``""`` if it has none."""
        return self.records[env_id].observation

    def failure(self, env_id: int) -> EnvFailed | None:
        """The failure that has ended the environment's episode; None while it can be played."""
        return self.records[env_id].failed

    def reset_digest(self, env_id: int) -> Any:
        """The digest of the first observation of the environment's episode."""
        return self.records[env_id].journal.digest

    def bound_to_main(self, env_id: int) -> str:
        """The reason why the environment cannot live in a worker; ``""`` if it can."""
        return self.records[env_id].bound_to_main

    def add(self, spec: EnvSpec, lane: int | None = None) -> None:
        """Add one more environment while others play; its first use builds it.

        For engines whose environments are added and removed individually. They stay where they were added;
        ``use_lanes`` applies to those passed at creation.

        Args:
            spec: The environment.
            lane: Index of the worker to host it; None for the main process.

        Raises:
            StateError: An environment with this id exists, or the engine is closed.
        """
        with self.environments.lock:
            self.environments.check_open()
            if spec.env_id in self.records:
                raise StateError(f"{spec.describe()} was added twice; remove it first, or give it another id.")
            home = self.homes.lane_of_index(lane) if lane is not None else None
            self.records[spec.env_id] = EnvRecord(spec, home)

    @holds_interrupts
    def remove(self, env_ids: Iterable[int]) -> None:
        """Close environments and forget them; unknown ids are ignored."""
        with self.environments.lock:
            leaving = self.environments.of([env_id for env_id in env_ids if env_id in self.records])
            for record in leaving:
                self.failures.came_through(record)
            self._forget(leaving)
            if not self.records:
                self.messages.forget()

    def _forget(self, leaving: Collection[EnvRecord]) -> None:
        self.homes.evict(leaving)
        for record in leaving:
            del self.records[record.env_id]

    def fork(self, env_id: int, new_ids: Iterable[int], turn: int | None = None) -> dict[int, Any]:
        """Add independent copies of an environment in its current or an earlier state (:mod:`envlanes.fork`).

        Args:
            env_id: The environment to copy.
            new_ids: Unused ids for the copies.
            turn: The turn after which to copy: 0 is its reset, None its current state, including changes since its last
                turn.

        Returns:
            The copies' observations, by env_id.

        Raises:
            InputError, StateError, ForkError: It cannot be forked, for the given reason; nothing was added.
        """
        added = list(new_ids)
        with self.environments.claimed([env_id]), ExitStack() as claims:
            with self.environments.lock:
                parent = self.records[env_id]
                fork.check_ids(added, self.records)
                fork.check_turn(parent, turn)
                journal = fork.journal_until(parent, turn)
                homes = self.homes.for_forks(parent.home, len(added), self._use_lanes is True)
                for new_id, home in zip(added, homes, strict=True):
                    self.records[new_id] = fork.child(parent, new_id, home, journal)
                claims.enter_context(self.environments.claimed(added))
            try:
                values = self._round(Fork, {new_id: (new_id,) for new_id in added}, self.settings.reset_timeout).run()
                for value in values.values():
                    if isinstance(value, EnvFailed):
                        where = f"{parent.spec.describe()} cannot be forked as it was after turn {journal.turns}"
                        raise ForkError(f"{where}: {value.text}.") from value.error
            except BaseException:  # an interrupt too: it has not happened
                with self.environments.lock:
                    self._forget(self.environments.of(added))
                raise
            for new_id, observation in values.items():
                self.records[new_id].commit_fork(observation)
            return values

    # What is asked of environments

    def build(self, env_ids: Iterable[int]) -> dict[int, Any]:
        """Build environments, one after the other; their first use would otherwise build them.

        Returns:
            None by env_id; :class:`EnvFailed` for those that could not be built.
        """
        items = {env_id: (env_id, None) for env_id in env_ids}
        with self.environments.claimed(items):
            return self._round(Build, items, self.settings.reset_timeout).run()

    def reset(
        self,
        seeds: Mapping[int, int | None] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        own_options: Mapping[int, dict[str, Any] | None] | None = None,
        recalled: Mapping[int, Any] | None = None,
    ) -> dict[int, Any]:
        """Begin new episodes, and their journals.

        Args:
            seeds: Seed by env_id, of the environments to reset; None continues with an environment's own generators. By
                default, all environments without a seed.
            options: Further arguments of each ``reset``, such as ``{"mode": "train"}``.
            own_options: Options by env_id, which replace ``options`` for these environments.
            recalled: The first observations, by env_id, if an earlier process has made these resets: nothing is reset
                until it is played, and then replayed and compared.

        Returns:
            Observations by env_id; :class:`EnvFailed` for those that could not be reset.

        Raises:
            StateError: The engine is closed, or another thread is using one of the environments.
            InputError: There is no such environment.
        """
        seeds = dict.fromkeys(self.records) if seeds is None else seeds
        given, own = dict(options) if options else None, own_options or {}
        orders = {env_id: ResetOrder(env_id, seed, own.get(env_id, given)) for env_id, seed in seeds.items()}
        with self.environments.claimed(orders, counts=True):
            is_whole = len(orders) == len(self.records)
            with self.environments.lock:
                for record in self.environments.of(orders):
                    self.failures.came_through(record)
                    record.forget_failures()
                self.homes.readmit(self.environments.of(orders), [each for each in seeds if seeds[each] is not None])
                if is_whole:
                    self.messages.forget()
                    self._rebalance({env_id for env_id, seed in seeds.items() if seed is not None})
            if recalled is not None:
                return {i: self.records[i].recall_reset(orders[i], recalled[i]) for i in orders}
            asked = self._round(Reset, orders, self.settings.reset_timeout)
            asked.may_move = is_whole and self._use_lanes == "auto"
            values = self._run(asked, "reset", orders)
            with self.environments.lock:
                for env_id, value in values.items():
                    record = self.records[env_id]
                    if type(value) is not EnvFailed and value.doubt:
                        self.failures.not_loaded(record, value.doubt)
                    values[env_id] = record.commit_reset(orders[env_id], value, asked.saved.get(env_id))
            return values

    def _round(self, kind: Any, items: Mapping[int, Any], timeout: float) -> Round:
        asked = Asked(kind, items, timeout, self.settings.reset_timeout)
        return Round(self, asked)

    def _run(self, asked: Round, what: str, env_ids: Collection[int]) -> dict[int, Any]:
        """Carry out a round; at the level DEBUG, log where it was played, what failed, and how long it took."""
        start = perf_counter()
        values = asked.run()
        if log.isEnabledFor(logging.DEBUG):
            homes = Counter(home_name(record.lane) for record in self.environments.of(env_ids))
            failed = {env_id: value.text for env_id, value in values.items() if type(value) is EnvFailed}
            where = ", ".join(f"{count} in {home}" for home, count in homes.items())
            log.debug("%s: %s; %.3f ms; failed: %s", what, where, 1e3 * (perf_counter() - start), failed or "none")
        return values

    def play(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        """Play one turn in each of the given environments, and add it to their episodes.

        Args:
            actions: Input of the environment's game by env_id; for RAGEN's a
                :class:`~envlanes.episode.turn.Turn`. The engine keeps it: do not modify it afterwards.

        Returns:
            The game's results by env_id, in the order of ``actions``; :class:`EnvFailed` for environments that failed.

        Raises:
            StateError: The engine is closed, an environment was not reset, or another thread is using it.
            InputError: There is no such environment.
        """
        with self.environments.claimed(actions, counts=True):
            items, records = dict(zip(actions, actions.items(), strict=True)), self.records
            asked = Round(self, Asked(Play, items, self.settings.step_timeout, self.settings.reset_timeout))
            with self.environments.lock:
                asked.may_move = self._before_turns(actions)
            values = self._run(asked, "turn", actions) if log.isEnabledFor(logging.DEBUG) else asked.run()
            with self.environments.lock:
                for env_id, value in values.items():
                    if type(value) is not EnvFailed:
                        records[env_id].commit_turn(actions[env_id], value, asked.saved.get(env_id))
                if self.failures.kills or self.failures.killed:
                    self.failures.forgive_kills(record for record in self.environments.of(actions) if record.in_sync)
            return values

    def recall(self, turns: Mapping[int, tuple[Any, Any]]) -> None:
        """Add turns that an earlier process has played to the episodes; replayed before the next use, and compared.

        Args:
            turns: The action and the game's result by env_id.

        Raises:
            StateError, InputError: As :meth:`play`.
        """
        with self.environments.claimed(turns), self.environments.lock:
            for env_id, (action, result) in turns.items():
                self.records[env_id].commit_turn(action, result, None)
                self.records[env_id].in_sync = False

    def _before_turns(self, env_ids: Collection[int]) -> bool:
        """Move environments that belong in workers; whether more may be moved during the call."""
        for record in map(self.records.__getitem__, env_ids):
            if not record.journal.has_begun and record.failed is None:
                raise StateError(f"env {record.env_id} has not been reset; reset it before playing it.")
        if self._use_lanes != "auto" or len(self.environments.in_use) != len(env_ids):
            return False
        self.homes.before_turn(env_ids, self.stats_book.episode)
        return True

    def call(self, env_ids: Iterable[int], name: str, *arguments: Any, **keywords: Any) -> dict[int, Any]:
        """Call a method of environments between two turns, or read an attribute; journaled like a turn.

        Returns:
            Its result by env_id (a copy, if the environment lives in a worker); an
            :class:`~envlanes.errors.EnvError` if it raised, or the failure's error if the environment was lost.
        """
        return self.change(dict.fromkeys(env_ids, Change(name, copied(arguments), copied(keywords))))

    def set_attr(self, env_ids: Iterable[int], name: str, value: Any) -> dict[int, Any]:
        """Set an attribute of environments where they live; it survives killed workers and resets.

        Returns:
            None by env_id; an error if it could not be set.
        """
        return self.change(dict.fromkeys(env_ids, Change(name, (copied(value),), is_set=True)))

    def read(self, env_ids: Iterable[int], name: str, *arguments: Any) -> dict[int, Any]:
        """:meth:`call` for reads that change nothing in the environment; not journaled."""
        return self.change(dict.fromkeys(env_ids, Change(name, arguments)), is_journalled=False)

    def change(self, changes: Mapping[int, Change], is_journalled: bool = True) -> dict[int, Any]:
        """:meth:`call`, :meth:`set_attr` or :meth:`read` with separate arguments per environment, by env_id."""
        with self.environments.claimed(changes):
            items = {env_id: (env_id, change) for env_id, change in changes.items()}
            asked = self._round(Call, items, self.settings.step_timeout)
            values = asked.run()
            with self.environments.lock:
                for env_id, value in values.items():
                    change = changes[env_id] if is_journalled else None
                    values[env_id] = self.records[env_id].commit_change(change, value)
            return values

    # Where environments live

    @property
    def use_lanes(self) -> Mode:
        """``True``, ``False`` or ``"auto"``; may be set between any two calls, and takes effect from the next one."""
        return self._use_lanes

    @use_lanes.setter
    @holds_interrupts
    def use_lanes(self, mode: Mode) -> None:
        with self.environments.lock:
            self.environments.check_open()
            changed, self._use_lanes = mode != self._use_lanes, mode
            self.homes.main.has_deadlines = mode is not False
            if changed and any(record.journal.has_begun for record in self.records.values()):
                self.homes.switch(mode)

    @holds_interrupts
    def bring_home(self, env_ids: Iterable[int]) -> None:
        """Move these environments to the main process; those that cannot be replayed follow at their next reset."""
        with self.environments.lock:
            self.homes.move_to_main([self.records[env_id] for env_id in env_ids])

    @holds_interrupts
    def settle(self) -> None:
        """Place environments before the first reset, for engines whose environments are called earlier."""
        if self._use_lanes != "auto":
            with self.environments.lock:
                self.homes.decide(self._use_lanes, self.stats_book.take_episode())

    @holds_interrupts
    def rebalance(self) -> None:
        """Clear old failures of lanes and decide on placement again; called where episodes begin one by one."""
        with self.environments.lock:
            self.environments.check_open()
            if not self.environments.in_use:  # of other threads
                self._rebalance()

    def _rebalance(self, reseeded: Collection[int] = ()) -> None:
        self.failures.begin_episode()
        self.homes.begin_episode()
        self.homes.decide(self._use_lanes, self.stats_book.take_episode(), reseeded)

    def home(self, env_id: int) -> str:
        """The process that hosts the environment: ``"main"``, or the name of a worker."""
        return home_name(self.records[env_id].lane)

    def placement(self) -> dict[str, str]:
        """Where each tag's environments live and why, by tag."""
        with self.environments.lock:
            return self.homes.reasons(self._use_lanes, self.stats_book.costs())

    def work(self) -> Work:
        """The work of environments since the engine was created."""
        with self.environments.lock:
            return self.stats_book.work()

    def stats(self) -> list[LaneStats]:
        """Statistics of each process, main first."""
        with self.environments.lock:
            return self.stats_book.lanes()

    def abandon(self) -> None:
        """Refuse further calls, and kill the workers of calls that are pending in other threads."""
        self.environments.close()
        for lane in {record.lane for record in self.records.values() if record.lane is not None}:
            lane.kill()

    @holds_interrupts
    def close(self, forgotten: bool = False) -> None:
        """Close all environments, and the workers if no other engine needs them; may be called twice.

        Args:
            forgotten: Called by the garbage collector, possibly while another engine waits for its lanes.
        """
        log.debug("closing %d environments", len(self.records))
        self.environments.close()
        try:
            self.messages.forget()
            self.homes.main.close(self.settings.step_timeout)
        finally:
            self.homes.close(forgotten)
