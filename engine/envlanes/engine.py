"""The engine: environments with one live replica each, in the main process or in a worker, that survive failures.

        ids -> requests                                          ids -> results
               |                                                          ^
               v                                                          |
    +-------------------------------- Engine ------------------------------------+
    |  records: where each environment lives, its journal, whether it is in sync |
    |  Round: asks, retries, decides (envlanes.round, .recovery)                 |
    |  commit: journals are written, once, when the round has come back          |
    +----------------------------------------------------------------------------+
               |                                       |
          EnvHost in main                           workers

An environment is *in sync* when its replica is exactly at the end of its journal (``docs/architecture.md``).

Any subset of the environments may be reset, played or called at any time. Several threads may do so at once if their
environments are disjoint. The main process plays for one thread at a time, and enforces deadlines in its main thread
only.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from envlanes.closing import Closing
from envlanes.environments import EnvFailed, Environments, EnvRecord, log
from envlanes.episode import program
from envlanes.episode.game import EpisodeStart
from envlanes.episode.host import ResetOrder, ResetResult
from envlanes.episode.journal import Change, EpisodeJournal
from envlanes.episode.spec import EnvSpec
from envlanes.episode.values import copied
from envlanes.errors import EnvLanesError, ForkError, InputError, StateError
from envlanes.failures import Failures, OnFailure, ignore
from envlanes.interrupts import holds_interrupts
from envlanes.placement import Placement
from envlanes.round import Round
from envlanes.settings import Mode, Settings
from envlanes.stats import LaneStats, Stats, Work, home_name
from envlanes.workers.orders import Build, Call, Fork, Play, Reset

_numbers = itertools.count(1)  # never used twice in this process: workers know engines by them


class Engine(Closing):
    """Environments, wherever they live; a context manager.

    Attributes:
        settings: The engine's settings.
        environments: The record of each environment, and which calls are using them.
        records: These records by env_id.
        not_deterministic: Tags whose replays differed, with the environment type of each.
        not_restored: Tags whose ``save`` and ``load`` did not restore an environment, likewise.
    """

    def __init__(
        self, specs: Iterable[EnvSpec] = (), settings: Settings | None = None, *, on_failure: OnFailure = ignore
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
        self.environments = Environments(self.settings)
        self.records = self.environments.records
        self._stats = Stats(self.environments)
        self._placement = Placement(next(_numbers), self.environments)
        self._failures = Failures(self.environments, self._placement, self._stats, on_failure)
        self.not_deterministic, self.not_restored = self._failures.not_deterministic, self._failures.not_restored
        for spec in specs:
            self._add(EnvRecord(spec, None))
        log.debug("%d environments: %s", len(self.records), self.settings)
        # Now, not at the first reset: workers start while the caller loads a model, and calls before the first reset
        # build environments where they will live.
        self._placement.decide({})

    # Environments

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
        return getattr(self.records[env_id].journal.start, "digest", None)

    def bound_to_main(self, env_id: int) -> str:
        """The reason why the environment cannot live in a worker; ``""`` if it can."""
        return self.records[env_id].bound_to_main

    def add(self, spec: EnvSpec, worker: int | None = None) -> None:
        """Add one more environment while others play; its first use builds it.

        For engines whose environments are added and removed individually. They stay where they were added;
        ``use_lanes`` applies to those passed at creation.

        Args:
            spec: The environment.
            worker: Index of the worker to host it; None for the main process.

        Raises:
            StateError: An environment with this id exists, or the engine is closed.
        """
        with self.environments.lock:
            self.environments.check_open()
            home = self._placement.workers(worker + 1)[worker] if worker is not None else None
            self._add(EnvRecord(spec, home, is_pinned=True))

    def _add(self, record: EnvRecord) -> None:
        if type(record.env_id) is not int:
            raise InputError(f"an environment got the id {record.env_id!r}; expected an integer.")
        if self.records.setdefault(record.env_id, record) is not record:
            raise StateError(f"{record.spec.describe()} was added twice; remove it first, or give it another id.")

    @holds_interrupts
    def remove(self, env_ids: Iterable[int]) -> None:
        """Close environments and forget them; unknown ids are ignored."""
        with self.environments.lock:
            leaving = self.environments.of([env_id for env_id in env_ids if env_id in self.records])
            # Before they are forgotten: an interrupt while they are closed leaves records that can be removed again.
            self._placement.evict(leaving)
            for record in leaving:
                del self.records[record.env_id]

    def fork(self, env_id: int, new_ids: Iterable[int], turn: int | None = None) -> dict[int, Any]:
        """Add independent copies of an environment in its current or an earlier state.

        A fork begins with a copy of the environment's journal, and is rebuilt from it like an environment whose worker
        was lost; its observations are compared with the journal::

            journal of env 0     reset  turn 1  turn 2  turn 3  turn 4 ...
                                                   |
            fork(0, [8, 9], turn=2)                +--> env 8, env 9: a journal of their own, up to here

        Args:
            env_id: The environment to copy.
            new_ids: Unused ids for the copies.
            turn: The turn after which to copy: 0 is its reset, None its current state, including changes since its last
                turn.

        Returns:
            The copies' observations, by env_id.

        Raises:
            InputError, StateError, ForkError: It cannot be forked, as the message says; nothing was added.
        """
        added: list[int] = []
        try:
            with self.environments.claimed([env_id]), ExitStack() as claims:
                with self.environments.lock:
                    parent = self.records[env_id]
                    journal = _journal_until(parent, turn)
                    for new_id in new_ids:
                        spec = replace(parent.spec, env_id=new_id, config=copied(parent.spec.config))
                        own = parent.is_pinned, parent.bound_to_main, journal.until(None)
                        self._add(EnvRecord(spec, parent.worker, *own))
                        added.append(new_id)
                    self._placement.settle(added)
                    # Before the lock is released: another thread that resets all environments must not find them idle.
                    claims.enter_context(self.environments.claimed(added))
                values = Round(self._failures, Fork, {new_id: (new_id,) for new_id in added}).run()
                for value in values.values():
                    if isinstance(value, EnvFailed):
                        where = f"{parent.spec.describe()} cannot be forked as it was after turn {journal.turns}"
                        raise ForkError(f"{where}: {value.text}.") from value.error
                for new_id, observation in values.items():
                    self.records[new_id].commit_fork(observation)
                return values
        except BaseException:  # an interrupt too: the call has not happened
            self.remove(added)
            raise

    # Requests

    def build(self, env_ids: Iterable[int]) -> dict[int, Any]:
        """Build environments, one after the other; their first use would otherwise build them.

        Returns:
            None by env_id; :class:`EnvFailed` for those that could not be built.
        """
        items = {env_id: (env_id, None) for env_id in env_ids}
        with self.environments.claimed(items):
            return Round(self._failures, Build, items).run()

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
        shared, own = dict(options) if options else None, own_options or {}
        orders = {env_id: ResetOrder(env_id, seed, own.get(env_id, shared)) for env_id, seed in seeds.items()}
        reseeded = {env_id for env_id, seed in seeds.items() if seed is not None}
        with self.environments.claimed(orders):
            round_ = Round(self._failures, Reset, orders)
            with self.environments.lock:
                # Failures are forgotten even if this reset is interrupted; the journals of the last episodes are not:
                # a reset without seeds can be made again and continues from the same generators.
                self._failures.begin_episodes(self.environments.of(orders))
                if len(orders) == len(self.records):
                    round_.may_move = self.use_lanes == "auto"
                    self._placement.decide(self._stats.take_episode(), reseeded)
            values = round_.run() if recalled is None else {i: self._recalled(orders[i], recalled[i]) for i in orders}
            with self.environments.lock:
                for env_id, value in values.items():
                    record, saved = self.records[env_id], round_.saved.get(env_id)
                    values[env_id] = record.commit_reset(orders[env_id], value, saved)
                    record.in_sync &= recalled is None  # else no replica is at the end of its journal
            return values

    def _recalled(self, order: ResetOrder, observation: Any) -> ResetResult:
        digest = self.spec(order.env_id).game.digest(observation)
        return ResetResult(observation, EpisodeStart(order.seed, order.options, digest))

    def play(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        """Play one turn in each of these environments, and add it to their episodes.

        Args:
            actions: Input of the environment's game by env_id. The engine keeps it: do not modify it afterwards.

        Returns:
            The game's results by env_id, in the order of ``actions``; :class:`EnvFailed` for environments that failed.

        Raises:
            StateError: The engine is closed, an environment was not reset, or another thread is using it.
            InputError: There is no such environment.
        """
        with self.environments.claimed(actions):
            records, episode = self.records, self._stats.episode
            items = dict(zip(actions, actions.items(), strict=True))
            round_ = Round(self._failures, Play, items)
            with self.environments.lock:
                for env_id in actions:
                    if records[env_id].journal.start is None and records[env_id].failed is None:
                        raise StateError(f"env {env_id} has not been reset; reset it before playing it.")
                # Not while another thread plays: main waits for it, which would look as if environments took long.
                if self._placement.mode == "auto" and len(self.environments.in_use) == len(actions):
                    round_.may_move = True
                    self._placement.reconsider(actions, episode, episode)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("turn: %s", dict(Counter(map(self.home, actions))))
            values = round_.run()
            # All results are here, and the round has declared an interrupt too late: either every environment of the
            # call has played this turn, or none has.
            with self.environments.lock:
                for env_id, value in values.items():
                    if type(value) is not EnvFailed:
                        records[env_id].commit_turn(actions[env_id], value, round_.saved.get(env_id))
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
                self.records[env_id].in_sync = False  # no replica has played it, whatever `commit_turn` says

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
            values = Round(self._failures, Call, items).run()
            with self.environments.lock:
                for env_id, value in values.items():
                    change = changes[env_id] if is_journalled else None
                    values[env_id] = self.records[env_id].commit_change(change, value)
            return values

    # Homes of environments

    @property
    def use_lanes(self) -> Mode:
        """``True``, ``False`` or ``"auto"``; may be set between any two calls, and takes effect from the next one."""
        return self._placement.mode

    @use_lanes.setter
    @holds_interrupts
    def use_lanes(self, mode: Mode) -> None:
        with self.environments.lock:
            self.environments.check_open()
            if mode != self.use_lanes:
                self._placement.switch(mode)

    @holds_interrupts
    def move_to_main(self, env_ids: Iterable[int]) -> None:
        """Move these environments to the main process; those that cannot be replayed follow at their next reset."""
        with self.environments.lock:
            self._placement.place(dict.fromkeys(env_ids))

    @holds_interrupts
    def rebalance(self) -> None:
        """Decide on placement again; called where episodes begin one by one."""
        with self.environments.lock:
            self.environments.check_open()
            if not self.environments.in_use:  # of other threads
                self._placement.decide(self._stats.take_episode())

    def home(self, env_id: int) -> str:
        """The process that hosts the environment: ``"main"``, or the name of a worker."""
        return home_name(self.records[env_id].worker)

    def work(self) -> Work:
        """The work of environments since the engine was created."""
        with self.environments.lock:
            return self._stats.work()

    def stats(self) -> list[LaneStats]:
        """Statistics of each process, main first."""
        with self.environments.lock:
            return self._stats.workers()

    def abandon(self) -> None:
        """Refuse further calls, and kill the workers of calls that are pending in other threads."""
        self.environments.is_closed = True  # without the lock, which a pending call may hold
        for worker in {record.worker for record in list(self.records.values()) if record.worker is not None}:
            worker.kill()

    @holds_interrupts
    def close(self, forgotten: bool = False) -> None:
        """Close all environments, and the workers if no other engine needs them; may be called twice.

        Args:
            forgotten: Called by the garbage collector, possibly while another engine waits for its workers.
        """
        log.debug("closing %d environments", len(self.records))
        # First, and without the lock: a call of another thread holds it now and then, and ends when it finds this.
        self.environments.is_closed = True
        try:
            # `finally`: an environment's close() may be interrupted by Ctrl-C, and workers must not be left behind.
            self._placement.main.close(self.settings.step_timeout)
        finally:
            self._placement.close(forgotten)


def _journal_until(parent: EnvRecord, turn: int | None) -> EpisodeJournal:
    """The journal with which a fork of an environment begins.

    Raises:
        StateError: It was not reset yet.
        InputError: There is no such turn.
        ForkError: It has failed, and has no current state.
    """
    spec, played, failed = parent.spec, parent.journal.turns, parent.failed
    error: type[EnvLanesError] | None = None
    if parent.journal.start is None:
        error, reason = StateError, f"its reset has failed: {failed.text}" if failed else "it has not been reset"
    elif turn is None and failed is not None:
        error, reason = ForkError, f"it has failed ({failed.text}); give the turn to go back to, from 0 to {played}"
    elif turn is not None and (type(turn) is not int or not 0 <= turn <= played):
        error, reason = InputError, f"expected None for its current state, or a turn from 0 (its reset) to {played}"
    if error is not None:
        raise error(f"{spec.describe()} cannot be forked after turn = {turn!r}: {reason}.")
    return parent.journal.until(turn)
