"""The host of environments: the same object in the main process and in a worker of any kind.

A host builds environments from specs, resets them, plays their turns, replays their journals and closes them. Every
method takes a batch and returns one :class:`~envlanes.episode.outcome.Outcome` per item, in order: an environment
that raises is one outcome, and the rest of the batch continues. Before each item the host reports its position
(``mark``), so that the main process knows which environment's deadline is running.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from envlanes.episode import replicas
from envlanes.episode.clock import Spent, usage
from envlanes.episode.global_rng import outer_state_kept
from envlanes.episode.journal import Change, EpisodeJournal, difference
from envlanes.episode.outcome import LOADING, Outcome, Overdue, Raised, TimedOut, describe
from envlanes.episode.pickled import Pickled
from envlanes.episode.replicas import Replica
from envlanes.episode.spec import EnvSpec
from envlanes.episode.turn import named
from envlanes.interrupts import interrupts_let_through, let_signals_pass


class ResetOrder(NamedTuple):
    """One requested reset.

    Attributes:
        env_id: The environment.
        seed: Seed of the episode; None continues with the environment's own generators.
        options: Further arguments of ``reset``, such as ``{"mode": "train"}``.
    """

    env_id: int
    seed: int | None
    options: dict[str, Any] | None = None


class ResetResult(NamedTuple):
    """The result of a reset.

    Attributes:
        observation: The first observation.
        digest: Its digest for the journal.
        before: State of the generators before the reset that no seed decides; see :class:`EpisodeJournal`.
        is_loaded: Whether ``load`` may have had a part in it: of what the first member of its group had saved.
        doubt: How ``load`` failed to bring it there, in words, so that it was reset; empty if it did not.
    """

    observation: Any
    digest: Any
    before: Any
    is_loaded: bool = False
    doubt: str = ""


class EnvHost:
    """Environments that live in this process.

    Attributes:
        mark: Called with the position.
        since: When the current item was started, on ``time.perf_counter()``; 0 while the host is idle.
        spent: The time of the last batch by tag, without items that failed.
        until: When to begin no further reset or turn of a batch, on ``time.perf_counter()``; the rest has no outcomes.
        counts_children: Whether child processes that live count as computing; see :func:`.usage`.
    """

    def __init__(
        self,
        mark: Callable[[int], None] | None = None,
        keeps_outer_rng: bool = True,
        on_late: Callable[[EnvSpec, str], None] = lambda spec, text: None,
    ) -> None:
        """Start with none.

        Args:
            mark: Called with an item's index in its batch before work on it starts, and with the batch's length
                after the last.
            keeps_outer_rng: Whether the process's own random numbers must be left alone; not so in workers.
            on_late: Called at once when an environment was interrupted at its deadline.
        """
        self._on_late = on_late
        self._replicas: dict[int, Replica] = {}
        self._rng_users: set[int] = set()  # those that may draw from the global generators
        self.mark = mark
        self._at = 0
        self.since, self.until, self.counts_children = 0.0, inf, False
        self.spent: dict[str, Spent] = {}
        self._keeps_outer_rng = keeps_outer_rng
        self._not_shared: set[str] = set()  # tags whose groups are reset one by one, since `load` fails to
        self._known: set[tuple[str, str]] = set()  # tags and operations of which there was one

    def load(self, specs: Iterable[EnvSpec]) -> None:
        """Register environments; they are built when first needed."""
        for spec in specs:
            self._unload(spec.env_id)
            self._replicas[spec.env_id] = Replica(spec, spec.game.play)
            if spec.uses_global_rng:
                self._rng_users.add(spec.env_id)

    def build(self, items: Sequence[tuple[int, None]]) -> list[Outcome]:
        """Build the environments of ``(env_id, None)`` before they are needed. Outcomes hold None."""
        return self._each(items, "build", lambda replica, item: replicas.build_if_needed(replica))

    def reset(self, orders: Sequence[ResetOrder]) -> list[Outcome]:
        """Begin new episodes. Outcomes hold a :class:`ResetResult`."""
        first: dict[Any, tuple[bytes, Any]] = {}
        self.spent = {}
        return self._each(orders, "reset", lambda replica, order: self._reset_one(replica, order, first))

    def play(self, items: Sequence[tuple[int, Any]]) -> list[Outcome]:
        """Play the turns of ``(env_id, action)``. Outcomes hold results of the game."""
        self.spent = {}
        return self._each(items, "play", replicas.play)

    def replay(self, items: Sequence[tuple[int, EpisodeJournal]], first: int = 0) -> list[Outcome]:
        """Rebuild the episodes of ``(env_id, journal)``; outcomes hold the observation or a divergence.

        The first of them is item ``first`` of its batch.
        """
        return self._each(items, "replay", self._replay_one, first)

    def call(self, items: Sequence[tuple[int, Change]]) -> list[Outcome]:
        """Call a method of environments, or set or read an attribute. Outcomes hold the result."""
        return self._each(items, "call", replicas.call)

    def unload(self, env_ids: Iterable[int]) -> None:
        """Close environments and forget them, each an item of its own to the deadline; a failure to close is logged."""
        for index, env_id in enumerate(list(env_ids)):
            if self.mark is not None:
                self.mark(index)
            self._unload(env_id)

    @property
    def env_ids(self) -> list[int]:
        """The environments that are loaded."""
        return list(self._replicas)

    def close(self) -> None:
        """Close all."""
        self.unload(self._replicas)

    def _unload(self, env_id: int) -> None:
        self._rng_users.discard(env_id)
        replica = self._replicas.pop(env_id, None)
        if replica is None:
            return
        outer = outer_state_kept() if self._keeps_outer_rng and replica.rng else nullcontext()
        with outer, interrupts_let_through():
            self.since = perf_counter()
            replicas.close(replica)
            self.since = 0.0

    def _each(
        self, items: Sequence[Any], phase: str, work: Callable[[Replica, Any], Any], first: int = 0
    ) -> list[Outcome]:
        outcomes, mark, tag = [], self.mark, ""
        until = self.until if phase in ("reset", "play") else inf
        times: list[float] = []  # of consecutive items of a tag
        before = (0.0, 0.0)
        with self._outer_rng(items), interrupts_let_through():  # not while the outer state is given back
            start = perf_counter()
            for index, item in enumerate(items, first):
                self._at = index
                if mark is not None:
                    mark(index)
                env_id = item[0]
                replica = self._replicas[env_id]
                if replica.spec.tag != tag:
                    self._add_up(tag, phase, times, before)
                    tag, times, before = replica.spec.tag, [], usage(self.counts_children)
                    start = perf_counter()
                saved = None
                try:
                    self.since = start
                    if type(item[1]) is Pickled:
                        item = item[1].open()
                    value = work(replica, item)
                    if replica.has_snapshots:
                        self._save(replica, item, value, phase, perf_counter() - start)
                        saved, replica.saved = replica.saved, None
                    self.since = 0.0
                except BaseException as error:
                    self.since = 0.0
                    value = self._raised(error, replica.spec, _doing(replica, item, phase))
                now = perf_counter()
                seconds, start = now - start, now
                if type(value) is not Raised and type(value) is not TimedOut:
                    times.append(seconds)
                outcomes.append(named(Outcome, (env_id, value, seconds, saved)))
                if now > until and not (
                    phase == "reset" and self._shares_its_reset(replica, items[index - first + 1 :])
                ):
                    break
            self._add_up(tag, phase, times, before)
            if mark is not None:
                mark(first + len(items))
        return outcomes

    def _shares_its_reset(self, replica: Replica, later: Sequence[ResetOrder]) -> bool:
        """Whether the next environment may load what one of this one's group has saved in this batch."""
        group = self._replicas[later[0][0]].spec.group_id if later else None
        return replica.has_snapshots and group == replica.spec.group_id

    def _add_up(self, tag: str, phase: str, times: Sequence[float], before: tuple[float, float]) -> None:
        """Add items of a tag that did not fail, and their share of what was computed since ``before``."""
        if times:
            passed, computed = (now - then for now, then in zip(usage(self.counts_children), before, strict=True))
            share = min(1.0, sum(times) / passed)
            more = Spent.of(times, share * computed, is_first=(tag, phase) not in self._known)
            self._known.add((tag, phase))
            self.spent[tag] = self.spent[tag].also(more) if tag in self.spent else more

    def _save(self, replica: Replica, item: Any, value: Any, phase: str, seconds: float) -> None:
        """Take a snapshot after an item if one is due."""
        if phase in ("play", "reset"):
            begun = item if phase == "reset" else getattr(value, "began", None)
            if begun is not None:
                replica.unsaved_s = seconds = 0.0  # what was before is not replayed
            replicas.save_if_due(replica, value.observation, seconds, begun is not None and begun.seed is None)
        elif phase == "replay":
            replica.unsaved_s = 0.0

    def _raised(self, error: BaseException, spec: EnvSpec, phase: str) -> Raised:
        """Describe an environment's exception; a signal to this process is raised again."""
        if isinstance(error, Overdue):
            self._on_late(spec, str(error))
            return TimedOut(phase, str(error), "".join(traceback.format_exception(error)))
        let_signals_pass(error)
        return Raised.of(error, phase, travels=not self._keeps_outer_rng)

    def _outer_rng(self, items: Sequence[Any]) -> AbstractContextManager[None]:
        kept = self._keeps_outer_rng and self._rng_users and any(item[0] in self._rng_users for item in items)
        return outer_state_kept() if kept else nullcontext()

    def _restart_clock(self) -> None:
        """Restart the deadline of the current item."""
        if self.mark is not None:
            self.mark(self._at)
        self.since = perf_counter()

    def _reset_one(self, replica: Replica, order: ResetOrder, first: dict[Any, tuple[bytes, Any]]) -> ResetResult:
        """Reset a member of a group, or load what the first member in this batch saved after its reset.

        Where ``load`` raises or does not give what the first member shows, this and later members of the tag are reset.
        """
        replicas.build_if_needed(replica)
        game, seed = replica.spec.game, order.seed
        if seed is None:
            before = replicas.generator_states(replica, is_seeded=False)
            observation = replicas.reset(replica, None, order.options)
            return ResetResult(observation, game.digest(observation), before)
        group = (replica.spec.group_id, seed, repr(order.options))
        tag, doubt, expected = replica.spec.tag, "", None
        if group in first and tag not in self._not_shared:
            saved, expected = first[group]
            loaded, doubt = _loaded(replica, saved, expected)
            if loaded is not None:
                return loaded
            self._not_shared.add(tag)
            self._restart_clock()
        before, start = replicas.generator_states(replica, is_seeded=True), perf_counter()
        observation = replicas.reset(replica, seed, order.options)
        digest = game.digest(observation)
        if doubt:  # or each reset gives something else, which is not to be blamed on `load`
            is_equal = difference(-1, ("digest",), (expected,), (digest,)) is None
            return ResetResult(observation, digest, before, not is_equal, doubt if is_equal else "")
        reset_s = perf_counter() - start
        is_dear = replica.saves_midway and reset_s > replicas.DEAR_RESET_S
        if is_dear and tag not in self._not_shared and (state := replicas.saved_or_none(replica, observation)):
            first[group] = state, digest
        return ResetResult(observation, digest, before)

    def _replay_one(self, replica: Replica, item: tuple[int, EpisodeJournal]) -> Any:
        return replicas.replay(replica, item[1], self._restart_clock)


def _doing(replica: Replica, item: Any, phase: str) -> str:
    """The operation during which an environment raised; an item still pickled could not be unpickled."""
    if type(item[1]) is Pickled:
        return "load"
    if replica.is_loading:
        return LOADING
    return phase if replica.env is not None else "build"


def _loaded(replica: Replica, saved: bytes, expected: Any) -> tuple[ResetResult | None, str]:
    """The reset of a member of a group, loaded; or None, and why it is not what the first member shows."""
    game = replica.spec.game
    try:
        observation, is_observed = replicas.load(replica, saved)
        digest = game.digest(observation)
    except Exception as error:
        replica.is_loading = False
        return None, describe(error)
    found = difference(-1, ("digest",), (expected,), (digest,)) if is_observed else None
    return (None, found.describe()) if found else (ResetResult(observation, digest, None, is_loaded=True), "")
