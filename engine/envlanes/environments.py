"""An engine's records of its environments, which calls are using them, and the lock over both.

An environment is *in sync* when its replica is exactly at the end of its journal. The flag is cleared as soon as a
request is sent, and set when the result is committed, so the next use notices if anything went wrong in between.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from envlanes.episode.game import named
from envlanes.episode.host import ResetOrder
from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.outcome import Raised
from envlanes.episode.spec import EnvSpec
from envlanes.errors import EnvError, EnvLanesError, InputError, StateError
from envlanes.interrupts import guard, interrupts_held
from envlanes.recovery import NO_TRIES, Tries
from envlanes.settings import Settings
from envlanes.workers.worker import Worker

log = logging.getLogger("envlanes.engine")  # the engine logs under one name, whichever module does
NOT_LOADED = -2  # no process has this generation: Worker.current is -1 while there is none
IN_MAIN = 0  # the generation of the main process


@dataclass(frozen=True)
class EnvFailed:
    """An environment that has failed for good in this episode; returned in place of a result.

    Attributes:
        text: The failure, in the same words wherever the environment lived.
        error: The full error, with the environment's own exception as its cause where there is one.
        phase: The operation that failed.
    """

    text: str
    error: EnvLanesError
    phase: str = ""


@dataclass(slots=True)
class EnvRecord:
    """One environment: where it lives, and what has happened to it in this episode.

    Attributes:
        spec: Describes how to build it.
        worker: The worker that it lives in; None for the main process.
        is_pinned: Whether it stays at the home that it was added to, whatever the placement decides.
        env_id: Its index.
        generation: The process of ``worker`` that has it loaded.
        in_sync: Whether its replica is exactly at the end of its journal.
        before: Worker and generation of the replica at the end of its journal that it moves from, which stays open
            until the new one has returned a result; None if there is none.
        bound_to_main: The reason that it does not work in a worker; empty if none is known.
        tries: Its failures at the current request.
        failed: The failure that ended its episode, if it has failed for good.
        journal: The episode so far.
        observation: Its last observation.
    """

    spec: EnvSpec
    worker: Worker | None
    is_pinned: bool = False
    bound_to_main: str = ""
    journal: EpisodeJournal = field(default_factory=EpisodeJournal)
    env_id: int = field(init=False)
    generation: int = NOT_LOADED
    in_sync: bool = False
    before: tuple[Worker | None, int] | None = None
    tries: Tries = NO_TRIES
    failed: EnvFailed | None = None
    observation: Any = ""

    def __post_init__(self) -> None:
        """Cache what every turn needs."""
        self.env_id = self.spec.env_id

    # A replica is known by its worker *and* generation, the process that sat there: a worker that was killed and
    # replaced has the same name, and none of its environments. No record has to be updated when a worker dies.

    @property
    def is_loaded(self) -> bool:
        """Whether its worker's current process, or the main process, has it loaded."""
        return self.generation == (IN_MAIN if self.worker is None else self.worker.current)

    @property
    def is_live(self) -> bool:
        """Whether a live replica is at the end of its journal."""
        return self.in_sync and self.is_loaded

    @property
    def can_move(self) -> bool:
        """Whether it can be rebuilt elsewhere in its current state."""
        is_known = self.spec.is_replayable and self.journal.can_be_rebuilt
        return is_known or self.journal.start is None or not self.is_live

    # Commit the results of a call

    def commit_reset(self, order: ResetOrder, value: Any, saved: bytes | None) -> Any:
        """Begin the journal of a new episode, with a snapshot if any; returns the observation or the failure."""
        if isinstance(value, EnvFailed):
            # Without a seed, the next reset must still continue from the last episode: its journal stays.
            if order.seed is not None:
                self.journal, self.observation = EpisodeJournal(settings=self.journal.lasting()), ""
            return value
        self.commit_turn(None, value, saved)
        return value.observation

    def commit_fork(self, observation: Any) -> None:
        """Mark a fork as being at the end of its journal."""
        self.observation, self.in_sync, self.tries = observation, True, NO_TRIES

    def commit_turn(self, action: Any, result: Any, saved: bytes | None) -> None:
        """Add a turn, and the snapshot taken after it, to the episode, or begin the next episode with it."""
        began = getattr(result, "began", None)
        if began is None:
            self.journal.entries.append(named(JournalTurn, (action, self.spec.game.record(result))))
        else:
            self.journal = EpisodeJournal(began, self.journal.lasting())
        # `in_sync` after the entry: in the other order, an environment would look as if it were at the end of a journal
        # that lacks its last turn, and a rebuild would lose it without any difference to notice.
        self.observation, self.in_sync, self.tries = result.observation, True, NO_TRIES
        if saved is not None:
            self.journal.keep(saved, result.digest if began is None else began.digest)

    def commit_change(self, change: Change | None, value: Any) -> Any:
        """Add a change to the episode (None: nothing changed); returns its result, or an error if it raised."""
        if isinstance(value, EnvFailed):
            return value.error
        if change is not None:
            self.journal.append_change(change)
        self.in_sync, self.tries = True, NO_TRIES
        if not isinstance(value, Raised):
            return value
        error = EnvError(f"{self.describe()} raised {value.text} (during {value.phase}).")
        error.__cause__ = value.exception()
        return error

    def describe(self) -> str:
        """The environment, its turn and seed, for messages."""
        if (start := self.journal.start) is None:
            return f"{self.spec.describe()} at its reset"
        seed = "" if start.seed is None else f" of seed {start.seed}"
        return f"{self.spec.describe()} at turn {self.journal.turns + 1}{seed}"


class Environments:
    """The environments of one engine, its settings and its log.

    Attributes:
        settings: The engine's settings.
        records: The record of each environment, by env_id.
        lock: Held while records are read or changed, never while environments are at work.
        in_use: Ids that calls of any thread are using now.
        is_closed: Whether the engine is closed.
        passed_s: Elapsed time of calls; where calls of several threads overlap, it counts once.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.records: dict[int, EnvRecord] = {}
        self.lock = threading.RLock()
        self.in_use: set[int] = set()
        self.is_closed = False
        self.passed_s = self._since = 0.0
        self._warned: set[Hashable] = set()

    def warn(self, message: str, kind: Hashable = None, cause: BaseException | None = None) -> None:
        """Log a warning, with the traceback of its cause; of each ``kind`` the first, and later ones at level INFO.

        A thousand environments that fail alike are one warning: each has its own failure as its result.
        """
        is_known = kind in self._warned
        self._warned.update({kind} - {None})
        log.log(logging.INFO if is_known else logging.WARNING, "%s", message, exc_info=None if is_known else cause)

    @contextmanager
    def claimed(self, env_ids: Iterable[int]) -> Iterator[None]:
        """Reserve environments for the length of a call, with interrupts held back.

        Raises:
            InputError: There is no such environment.
            StateError: Another call is using one of them, or the engine is closed.
        """
        # Mostly the caller has a guard already, and this is part of each turn.
        with nullcontext() if guard.is_held else interrupts_held():
            wanted = set(env_ids)
            with self.lock:
                if self.is_closed:
                    self.check_open()
                if unknown := wanted.difference(self.records):
                    raise InputError(f"this engine has no environment {sorted(unknown, key=str)[0]!r}.")
                if taken := self.in_use & wanted:
                    raise StateError(f"env {min(taken)} is in use by another thread; wait until that call returns.")
                # From the first call to the end of the last: two threads that wait for the same second count it once.
                self._since = self._since if self.in_use else perf_counter()
                self.in_use |= wanted
            try:
                yield
            finally:
                with self.lock:
                    self.in_use -= wanted
                    self.passed_s += 0.0 if self.in_use else perf_counter() - self._since

    def check_open(self) -> None:
        """Raise a ``StateError`` if the engine is closed."""
        if self.is_closed:
            raise StateError("this manager is closed; create a new one.")

    def of(self, env_ids: Collection[int]) -> list[EnvRecord]:
        """The records of these environments, in the given order."""
        return list(map(self.records.__getitem__, env_ids))
