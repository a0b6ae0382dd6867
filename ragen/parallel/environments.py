"""What an engine knows of its environments: a record of each, which calls are using them, and the lock over both.

An environment is *in sync* where its replica stands exactly at the end of its journal. The mark is cleared the moment
anything is sent, and set when the result is committed: whatever happens in between, the next use finds out.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ragen.errors import EnvError, InputError, RagenError, StateError
from ragen.parallel.episode.game import EpisodeStart
from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.journal import Change, EpisodeJournal, JournalTurn
from ragen.parallel.episode.outcome import Raised
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import named
from ragen.parallel.interrupts import interrupts_held
from ragen.parallel.lanes.lane import Lane

NOT_LOADED = -2  # a generation that no worker has
IN_MAIN = 0  # the generation of the main process


@dataclass(frozen=True)
class EnvFailed:
    """An environment has failed for good in this episode; stands where its result would.

    Attributes:
        text: What happened, the same words wherever the environment lived.
        error: The full story, with the environment's own exception as its cause where there is one.
        phase: What was being done.
    """

    text: str
    error: RagenError
    phase: str = ""


def raise_failures(values: Mapping[int, Any], raises: bool, at_build: bool = False) -> None:
    """Raise the first failure among values by env_id, if failures raise; ``at_build`` those to build do always."""
    for value in values.values():
        if type(value) is EnvFailed and (raises or (at_build and value.phase == "build")):
            raise value.error


@dataclass(slots=True)
class EnvRecord:
    """One environment: where it lives, and what has happened to it in this episode.

    Attributes:
        spec: What builds it.
        home: The lane it was assigned to; None for the main process.
        env_id: Its index.
        lane: Where it lives now: its home, or a quarantine lane.
        generation: Which worker of ``lane`` has it loaded.
        in_sync: Whether its replica stands exactly at the end of its journal.
        bound_to_main: It turned out not to work in a worker.
        is_suspect: It is played in a quarantine lane, or waits until there is room.
        failures: How often it has failed at what is being asked.
        kills: How often its worker was killed at that, perhaps by someone else.
        failed: Why its episode is over, if it has failed for good.
        origin: The environment that it descends from by forks, whose moves it follows; None if it is no fork.
        journal: What was played.
        observation: What it last showed.
    """

    spec: EnvSpec
    home: Lane | None
    env_id: int = field(init=False)
    lane: Lane | None = field(init=False)
    generation: int = NOT_LOADED
    in_sync: bool = False
    bound_to_main: bool = False
    is_suspect: bool = False
    failures: int = 0
    kills: int = 0
    failed: EnvFailed | None = None
    origin: int | None = None
    journal: EpisodeJournal = field(default_factory=EpisodeJournal)
    observation: Any = ""

    def __post_init__(self) -> None:
        """Keep what is asked at every turn at hand."""
        self.env_id, self.lane = self.spec.env_id, self.home

    @property
    def is_loaded(self) -> bool:
        """Whether the worker that is at its lane now, or main, has it loaded."""
        return self.generation == (IN_MAIN if self.lane is None else self.lane.current)

    @property
    def can_move(self) -> bool:
        """Whether it can be rebuilt elsewhere as it stands now."""
        stands = self.in_sync and self.is_loaded and self.journal.has_begun
        return not stands or (self.spec.is_replayable and self.journal.can_be_rebuilt)

    def forget_failures(self) -> None:
        """A reset is about to come: failures of the last episode are over."""
        self.failures = self.kills = 0
        self.failed = None

    # What came of a call, once it has come back

    def commit_reset(self, order: ResetOrder, value: Any, saved: bytes | None) -> Any:
        """Begin the journal of a new episode, with a snapshot if there is one; what it shows, or why it failed."""
        if isinstance(value, EnvFailed):
            if order.seed is not None:  # else the next reset still has to go on from the last episode
                self.journal, self.observation = EpisodeJournal(settings=self.journal.lasting()), ""
            return value
        observation, digest, before = value
        self._begin(EpisodeStart(order.seed, order.options, digest, before), observation)
        if saved is not None:
            self.journal.keep(saved, digest)
        return observation

    def commit_fork(self, observation: Any) -> None:
        """It stands at the end of the journal that it was given."""
        self.observation, self.in_sync = observation, True
        self.failures = self.kills = 0

    def commit_turn(self, action: Any, result: Any, saved: bytes | None) -> None:
        """Make a turn part of the episode, or begin the next one with it; with the snapshot that was taken after it."""
        game = self.spec.game
        if game.begins_in_turns and result.began is not None:
            self._begin(game.start(action, result), result.observation)
        else:
            self.journal.entries.append(named(JournalTurn, (action, game.record(result))))
            self.observation, self.in_sync = result.observation, True
            self.failures = self.kills = 0
        if saved is not None:
            self.journal.keep(saved, result.digest)

    def commit_change(self, change: Change | None, value: Any) -> Any:
        """Make a change part of the episode, None for what changes nothing; what came of it, an error if it raised."""
        if isinstance(value, EnvFailed):
            return value.error
        if change is not None:
            self.journal.append_change(change)
        self.in_sync = True
        self.failures = self.kills = 0
        if not isinstance(value, Raised):
            return value
        error = EnvError(f"{self.describe()} raised {value.text} (while: {value.phase}).")
        error.__cause__ = value.exception()
        return error

    def _begin(self, start: EpisodeStart | None, observation: Any) -> None:
        assert start is not None
        self.journal = EpisodeJournal(*start, settings=self.journal.lasting(), has_begun=True)
        self.observation, self.in_sync = observation, True
        self.failures = self.kills = 0

    def describe(self) -> str:
        """The environment and how far it came, in words."""
        moment = f"at turn {self.journal.turns + 1}" if self.journal.has_begun else "at its reset"
        return f"{self.spec.describe()} {moment}"


class Environments:
    """The environments of one engine.

    Attributes:
        records: What is known of each, by env_id.
        lock: Held while records are read or changed, never while environments are at work.
        in_use: Those that calls are using now, of all threads.
        is_closed: Whether the engine is, and none can be used any more.
    """

    def __init__(self) -> None:
        self.records: dict[int, EnvRecord] = {}
        self.lock = threading.RLock()
        self.in_use: set[int] = set()
        self.is_closed = False

    @contextmanager
    def claimed(self, env_ids: Iterable[int]) -> Iterator[None]:
        """Have environments to oneself, with interrupts held back, for the length of a call.

        Raises:
            InputError: There is no such environment.
            StateError: Another call is using one of them, or the engine is closed.
        """
        self.check_open()
        with interrupts_held():
            wanted = set(env_ids)
            with self.lock:
                if unknown := wanted.difference(self.records):
                    raise InputError(f"this engine has no environment {sorted(unknown, key=str)[0]!r}.")
                if taken := self.in_use & wanted:
                    raise StateError(f"env {min(taken)} is in use by another thread; wait until that call returns.")
                self.in_use |= wanted
            try:
                yield
            finally:
                with self.lock:
                    self.in_use -= wanted

    def check_open(self) -> None:
        """Raise a ``StateError`` if the engine is closed."""
        if self.is_closed:
            raise StateError("this manager is closed; create a new one.")

    def of(self, env_ids: Collection[int]) -> list[EnvRecord]:
        """The records of these, in their order."""
        return list(map(self.records.__getitem__, env_ids))
