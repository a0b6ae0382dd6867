"""What an engine knows of one environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ragen.errors import EnvError, RagenError
from ragen.parallel.episode.game import EpisodeStart
from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.journal import Change, EpisodeJournal, JournalTurn
from ragen.parallel.episode.outcome import Raised
from ragen.parallel.episode.spec import EnvSpec
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
        record: What of a result goes into the journal: the game's.
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
    record: Callable[[Any], tuple[Any, ...]] = field(init=False, repr=False)
    journal: EpisodeJournal = field(default_factory=EpisodeJournal, init=False)
    observation: Any = field(default="", init=False)

    def __post_init__(self) -> None:
        """Keep what is asked at every turn at hand."""
        self.env_id, self.lane = self.spec.env_id, self.home
        self.record = self.spec.game.record

    @property
    def is_loaded(self) -> bool:
        """Whether the worker that is at its lane now, or main, has it loaded."""
        return self.generation == (IN_MAIN if self.lane is None else self.lane.current)

    @property
    def is_ready(self) -> bool:
        """Whether its replica is there, and stands at the end of its journal."""
        return self.in_sync and self.is_loaded

    @property
    def can_move(self) -> bool:
        """Whether it can be rebuilt elsewhere now: not in mid-episode if it declares that it cannot be replayed."""
        return self.spec.is_replayable or not (self.is_ready and self.journal.has_begun)

    def begin_episode(self) -> None:
        """A reset is about to come: failures of the last episode are over."""
        self.failures = self.kills = 0
        self.failed = None
        self.in_sync = False

    # What came of a call, once it has come back

    def commit_reset(self, order: ResetOrder, value: Any) -> Any:
        """Begin the journal of a new episode; what the environment shows, or why it failed."""
        if isinstance(value, EnvFailed):
            self.journal, self.observation = EpisodeJournal(settings=self.journal.lasting()), ""
            return value
        observation, digest, before = value
        self._begin_journal(EpisodeStart(order.seed, order.options, digest, before), observation)
        self._commit()
        return observation

    def commit_fork(self, journal: EpisodeJournal, observation: Any) -> None:
        """Begin with the journal of another environment."""
        self.journal, self.observation = journal, observation
        self._commit()

    def commit_turn(self, action: Any, result: Any) -> None:
        """Make a turn part of the episode, or begin the next one with it."""
        start = self.spec.game.start(action, result)
        if start is None:
            self.journal.entries.append(tuple.__new__(JournalTurn, (action, self.record(result))))
            self.observation = result.observation
        else:
            self._begin_journal(start, result.observation)
        self.in_sync = True
        if self.failures or self.kills:
            self.failures = self.kills = 0

    def commit_change(self, change: Change | None, value: Any) -> Any:
        """Make a change part of the episode, None for what changes nothing; what came of it, an error if it raised."""
        if isinstance(value, EnvFailed):
            return value.error
        if change is not None:
            self.journal.append_change(change)
        self._commit()
        if not isinstance(value, Raised):
            return value
        error = EnvError(f"{self.describe()} raised {value.text} (while: {value.phase}).")
        error.__cause__ = value.exception()
        return error

    def _begin_journal(self, start: EpisodeStart, observation: Any) -> None:
        self.journal = EpisodeJournal(*start, settings=self.journal.lasting(), has_begun=True)
        self.observation = observation

    def _commit(self) -> None:
        self.in_sync = True
        self.failures = self.kills = 0

    def describe(self) -> str:
        """The environment and how far it came, in words."""
        moment = f"at turn {self.journal.turns}" if self.journal.has_begun else "at its reset"
        return f"{self.spec.describe()} {moment}"
