"""The host of environments: the same object in the main process and in a worker of any kind.

A host builds environments from specs, resets them, plays their turns, replays their journals and closes them. Every
method takes a batch and returns one :class:`~envlanes.episode.outcome.Outcome` per item, in order: an environment
that raises is one outcome, and the rest of the batch continues. Before each item the host reports its position
(``mark``), so that the main process knows which environment's deadline is running.

A :class:`Replica` is the only live copy of its environment.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partialmethod
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from envlanes.episode import generators
from envlanes.episode.clock import Spent, usage
from envlanes.episode.game import EpisodeStart, named
from envlanes.episode.global_rng import EnvRng, outer_state_kept
from envlanes.episode.journal import Change, Divergence, EpisodeJournal, difference
from envlanes.episode.outcome import LOADING, Outcome, Overdue, Raised, TimedOut
from envlanes.episode.pickled import Pickled
from envlanes.episode.spec import EnvSpec
from envlanes.interrupts import interrupts_let_through, let_signals_pass

log = logging.getLogger(__name__)

# A snapshot is due after turns that took so many times its own cost, so that taking snapshots costs at most a tenth,
SAVE_SHARE = 10.0
REPLAY_S = 0.005  # and so many seconds: storing a snapshot costs the main process time too.


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
        began: The beginning of the episode, for its journal.
    """

    observation: Any
    began: EpisodeStart


class Replica:
    """An environment in this process, with its own state of the global generators in place while its code runs.

    Attributes:
        spec: Describes how to build it.
        env: The environment; None until it is first needed.
        has_snapshots: Whether its class declares ``save`` and ``load``; known once it is built.
        is_loading: Whether a snapshot is being loaded.
    """

    def __init__(self, spec: EnvSpec, tick: Callable[[], None]) -> None:
        self.spec, self._play, self._tick = spec, spec.game.play, tick
        self.env: Any = None
        self._rng: EnvRng | None = None  # None if it does not use the global generators
        self._was_reset = self.has_snapshots = self._saves_midway = self.is_loading = False
        self._unsaved_s = 0.0  # of the turns since its last snapshot
        self._save_s = 0.0  # that its last snapshot took; 0 until one was taken

    def _own_rng(self) -> AbstractContextManager[None]:
        """Install its state of the global generators for the length of one call."""
        return self._rng.in_place() if self._rng else nullcontext()

    def build(self, _: Any = None) -> None:
        """Build the environment unless it exists."""
        self.is_loading = False  # a load that has raised left it set, so that its failure could be named
        if self.env is not None:
            return
        game = self.spec.game
        # Seeded alike in every process: what building draws must not differ, and no seed is known yet.
        self._rng = EnvRng(0) if self.spec.uses_global_rng else None
        self._was_reset = False
        with self._own_rng():
            self.env = game.build(self.spec)
        self.has_snapshots = game.has_snapshots(self.env)
        self._saves_midway = self.has_snapshots and game.saves_midway(self.env)

    def reset(self, order: ResetOrder) -> ResetResult:
        """Begin an episode; without a seed, the last one's numbers go on."""
        self.build()
        if self._rng is not None and (order.seed is not None or not self._was_reset):
            self._rng.seed(order.seed)
        with self._own_rng():
            begun = self.spec.game.begin(self.env, *order[1:])
        self._was_reset = True
        return ResetResult(*begun)

    def play(self, item: tuple[int, Any]) -> Any:
        """Play a turn."""
        if self._rng is None:  # written out: a context manager less, where each call counts
            return self._play(self.env, item[1])
        with self._rng.in_place():
            return self._play(self.env, item[1])

    def call(self, item: tuple[int, Change]) -> Any:
        """Apply a change between two turns; returns its result."""
        self.build()
        with self._own_rng():
            return self.spec.game.apply(self.env, item[1])

    def replay(self, item: tuple[int, EpisodeJournal]) -> Any:
        """Rebuild an episode on a fresh environment, and compare each turn with its record.

        The previous environment is closed. Each entry has a deadline of its own.

        Returns:
            The observation, or the :class:`~envlanes.episode.journal.Divergence`.
        """
        _, journal = item
        self.close()  # first: two of some environments cannot be open at once
        self.build()
        for name, value in journal.settings.items():
            self.call((0, Change(name, (value,), is_set=True)))
        start, snapshot, turn = journal.start, journal.snapshot, journal.left_out
        if start is None:
            return None
        game, found = self.spec.game, None
        if snapshot is not None:
            shown, found = self._load(snapshot.state, snapshot.digest, turn - 1)
        else:
            outer, own = start.before or (None, None)
            generators.restore(self.env, own or ())
            if self._rng is not None and outer is not None:
                self._rng.restore(outer)
            elif self._rng is not None:
                self._rng.seed(start.seed)
            with self._own_rng():
                shown = game.reset(self.env, start.seed, start.options)
            self._was_reset = True
            found = difference(-1, ("digest",), (start.digest,), (game.digest(shown),))
        for entry in journal.entries:
            if found is not None:
                break
            self._tick()
            if isinstance(entry, Change):
                try:
                    self.call((0, entry))
                except Exception:  # it has raised before, may have had an effect all the same, and raises again
                    log.debug("a change of env %d raised in its replay", self.spec.env_id, exc_info=True)
                continue
            result = self.play((0, entry.action))
            found = difference(turn, game.recorded, entry.recorded, game.record(result))
            shown = result.observation
            turn += 1
        if found is not None:
            return found if snapshot is None else found._replace(snapshot=journal.left_out)
        self._unsaved_s = 0.0  # the journal has the snapshot
        return shown

    def _load(self, saved: bytes, digest: Any, turn: int) -> tuple[Any, Divergence | None]:
        """Load a snapshot into a newly built environment; its observation, and how that differs from the record.

        One that cannot be rendered between turns shows what was saved, and is only judged by the turns that follow.
        """
        game = self.spec.game
        state, outer, shown = Pickled(saved).open()
        if self._rng is not None:
            self._rng.restore(outer)
        with self._own_rng():
            self.is_loading = True
            game.load(self.env, state)
            self.is_loading = False
            now = game.observe(self.env)
        self._was_reset = True
        return (shown, None) if now is None else (now, difference(turn, ("digest",), (digest,), (game.digest(now),)))

    def save_if_due(self, shown: Any, seconds: float, began: EpisodeStart | None) -> bytes | None:
        """Take a snapshot after a turn or a reset if replaying the turns since the last one would cost more.

        An episode that began without a seed, and an environment that cannot be replayed, get one at the beginning. The
        snapshot that is returned is the whole state, including that of the global generators, and the observation. If
        ``save`` raises, or its result cannot be pickled, this is logged, and not tried again: since the clock decides
        when snapshots are taken, it only means that there is none.

        Args:
            shown: The current observation.
            seconds: Seconds that the turn took.
            began: The start of an episode that has just begun; None if none has.
        """
        self._unsaved_s = self._unsaved_s + seconds if began is None else 0.0  # turns before it are not replayed
        begins_unseeded = began is not None and began.seed is None
        if not (begins_unseeded or self._saves_midway):
            return None
        is_needed = begins_unseeded or not self.spec.is_replayable
        if not is_needed and self._unsaved_s < max(SAVE_SHARE * self._save_s, REPLAY_S):
            return None
        start, saved = perf_counter(), None
        try:
            with self._own_rng():
                state = self.spec.game.save(self.env)
            saved = Pickled.of((state, self._rng and self._rng.state(), shown)).pickled
        except Exception:
            log.warning("%s could not be saved, and is replayed where it is lost", self.spec.describe(), exc_info=True)
            self.has_snapshots = self._saves_midway = False
        self._save_s, self._unsaved_s = perf_counter() - start, 0.0
        return saved

    def close(self) -> None:
        """Close the environment, if there is one; a failure to close is logged."""
        env, self.env = self.env, None  # even if it cannot be closed, it is not used again
        ends = getattr(env, "close", None)
        if ends is None:
            return
        try:
            with self._own_rng():
                ends()
        except Overdue as error:
            log.warning("%s %s while it was closed", self.spec.describe(), error)
        except BaseException as error:
            let_signals_pass(error)
            log.warning("%s failed to close", self.spec.describe(), exc_info=True)


class EnvHost:
    """Environments that live in this process.

    Attributes:
        mark: Called with the position.
        since: When the current item was started, on ``time.perf_counter()``; 0 while the host is idle.
        spent: The time of the last batch by tag, without items that failed.
        until: When to begin no further reset or turn of a batch, on ``time.perf_counter()``; the rest has no outcomes.
        counts_children: Whether child processes that live count as computing; see :func:`.usage`.
    """

    def __init__(self, mark: Callable[[int], None] = lambda index: None, keeps_outer_rng: bool = True) -> None:
        """Start with none.

        Args:
            mark: Called with an item's index in its batch before work on it starts, and with the batch's length
                after the last.
            keeps_outer_rng: Whether the process's own random numbers must be left alone; not so in workers.
        """
        self._replicas: dict[int, Replica] = {}
        self.mark = mark
        self._at = 0
        self.since, self.until, self.counts_children = 0.0, inf, False
        self.spent: dict[str, Spent] = {}
        self._is_main = keeps_outer_rng
        self._keeps_outer_rng = False  # until there are environments that may draw from the global generators
        self._known: set[tuple[str, str]] = set()  # tags and operations of which there was one

    def load(self, specs: Iterable[EnvSpec]) -> None:
        """Register environments; they are built when first needed."""
        for spec in specs:
            self.unload([spec.env_id])  # a replica from before it moved away, if there is one
            self._replicas[spec.env_id] = Replica(spec, self._restart_clock)
            self._keeps_outer_rng |= self._is_main and spec.uses_global_rng

    def unload(self, env_ids: Iterable[int]) -> None:
        """Close environments and forget them, each an item of its own to the deadline; a failure to close is logged."""
        for index, env_id in enumerate(list(env_ids)):
            self.mark(index)
            if (replica := self._replicas.pop(env_id, None)) is not None:
                with self._outer_rng(), interrupts_let_through():
                    self.since = perf_counter()
                    replica.close()
                    self.since = 0.0

    @property
    def env_ids(self) -> list[int]:
        """The environments that are loaded."""
        return list(self._replicas)

    def close(self) -> None:
        """Close all."""
        self.unload(self._replicas)

    def _each(
        self, phase: str, work: Callable[[Replica, Any], Any], items: Sequence[Any], first: int = 0
    ) -> list[Outcome]:
        outcomes, mark, tag = [], self.mark, ""
        counts = phase in ("reset", "play")
        until, self.spent = self.until if counts else inf, {}
        times: list[float] = []  # of consecutive items of a tag
        before = (0.0, 0.0)
        # Interrupts may come as soon as, and as long as, the environments' own random state is put back by what is
        # left: in the other order, one would leave the program with an environment's numbers.
        with self._outer_rng(), interrupts_let_through():
            start = perf_counter()
            for index, item in enumerate(items, first):
                self._at = index
                mark(index)
                env_id = item[0]
                replica = self._replicas[env_id]
                if replica.spec.tag != tag:
                    self._add_up(tag, phase, times, before)
                    # Reading the clocks costs more than a cheap turn: once for all items of a tag.
                    tag, times, before = replica.spec.tag, [], usage(self.counts_children)
                    start = perf_counter()
                saved = None
                try:
                    self.since = start
                    if type(item[1]) is Pickled:
                        item = item[1].open()
                    value = work(replica, item)
                    if counts and replica.has_snapshots:
                        began = getattr(value, "began", None)
                        saved = replica.save_if_due(value.observation, perf_counter() - start, began)
                    self.since = 0.0
                except BaseException as error:
                    self.since = 0.0  # first of all: the deadline must not ring in what follows
                    value = self._raised(error, replica, item, phase)
                now = perf_counter()
                seconds, start = now - start, now
                if type(value) is not Raised and type(value) is not TimedOut:
                    times.append(seconds)
                outcomes.append(named(Outcome, (env_id, value, seconds, saved)))
                if now > until:  # at least one item is done: the caller would ask again for ever
                    break
            self._add_up(tag, phase, times, before)
            mark(first + len(items))
        return outcomes

    # Each takes the items of a batch, of which the first is item ``first``.
    build = partialmethod(_each, "build", Replica.build)  # of (env_id, None), before they are needed
    reset = partialmethod(_each, "reset", Replica.reset)  # of ResetOrder; outcomes hold a ResetResult
    play = partialmethod(_each, "play", Replica.play)  # of (env_id, action); outcomes hold the game's result
    call = partialmethod(_each, "call", Replica.call)  # of (env_id, Change); outcomes hold the method's result
    replay = partialmethod(_each, "replay", Replica.replay)  # of (env_id, journal); an observation or a divergence

    def _add_up(self, tag: str, phase: str, times: Sequence[float], before: tuple[float, float]) -> None:
        """Add items of a tag that did not fail, and their share of what was computed since ``before``."""
        if times:
            passed, computed = (now - then for now, then in zip(usage(self.counts_children), before, strict=True))
            # Items that failed have computed too, and are left out; at most 1, since the sum of many differences is
            # rounded.
            share = min(1.0, sum(times) / passed)
            more = Spent.of(times, share * computed, is_first=(tag, phase) not in self._known)
            self._known.add((tag, phase))
            self.spent[tag] = self.spent.get(tag, Spent()) + more

    def _raised(self, error: BaseException, replica: Replica, item: Any, phase: str) -> Raised:
        """Describe an environment's exception; a signal to this process is raised again."""
        if type(item[1]) is Pickled:  # it could not be unpickled
            phase = "load"
        elif replica.is_loading:
            phase = LOADING
        elif replica.env is None:
            phase = "build"
        if isinstance(error, Overdue):
            # At once, before the others of the batch have played, which may hang as well.
            where = "in the main process, where each environment waits for the one before"
            cure = "use_multiprocessing=true plays them in workers, and a shorter time limit ends a hang sooner"
            log.warning("%s %s %s; %s.", replica.spec.describe(), error, where, cure)
            return TimedOut(phase, str(error), "".join(traceback.format_exception(error)))
        let_signals_pass(error)
        return Raised.of(error, phase, travels=not self._is_main)

    def _outer_rng(self) -> AbstractContextManager[None]:
        return outer_state_kept() if self._keeps_outer_rng else nullcontext()

    def _restart_clock(self) -> None:
        """Restart the deadline of the current item."""
        self.mark(self._at)  # for a worker's deadline, which main enforces,
        self.since = perf_counter()  # and for main's own
