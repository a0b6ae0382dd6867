"""The decisions that follow from failures and timeouts, as tables. Nothing is carried out here.

An environment that fails (:func:`decide`), with ``on_env_failure: fallback``:

    | what happened                              | the first time              | again                             |
    |--------------------------------------------|-----------------------------|-----------------------------------|
    | it raised, in a worker                     | once more in quarantine     | to main, where it stays; failed   |
    |                                            |                             |   if it may end main              |
    | it raised as it was built, in a worker     | to main, where it stays     | the same                          |
    | it raised in main                          | once more in main           | failed                            |
    | it timed out in main                       | once more in main           | failed                            |
    | its step timed out, its worker exited or   | once more in quarantine     | failed                            |
    |   crashed at it                            |                             |                                   |
    | its worker was killed at it (SIGKILL,      | once more in quarantine,    | as if it had exited               |
    |   SIGTERM): perhaps from outside           |   up to ``max_restarts``    |                                   |
    | its class did that as it was loaded        | once more, with its tag     | failed                            |
    | it, or its result, cannot travel           | to main, where it stays     |                                   |
    | its replay differs                         | once more in main           | failed                            |
    | any of these in main, where it had gone to | failed; the next episode is |                                   |
    |   stay since it raised in workers          |   tried in a worker again   |                                   |
    | its state is lost, and it cannot replay    | failed                      |                                   |
    | any of these where it moves to, but for an | back, where its replica was |                                   |
    |   end of its worker at a turn              |   kept, and its type stays  |                                   |

A lane whose worker is gone while no environment was at its turn (:func:`decide_lane`):

    | what happened            | up to ``max_restarts`` times an episode | after that                           |
    |--------------------------|-----------------------------------------|--------------------------------------|
    | it ended while idle      | a new worker                            | its environments go to quarantine    |
    | it did not come up       | a new worker                            | to main; the lane rests for a while  |
    | it timed out starting    | to main at once; the lane rests         |                                      |

An environment in quarantine returns to its shared lane at its next reset; where all that was held against it, or its
lane, are kills that may come from outside, as soon as it has played a turn, which also forgives the lane these kills.

Every row either finishes an environment or counts something that is bounded, so that every call ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from envlanes.lanes.failure import Cause, LaneFailure
from envlanes.settings import Settings


class Trouble(Enum):
    """What happened to an environment."""

    RAISED = auto()
    OVERDUE = auto()  # in main, and was interrupted
    ENDED = auto()  # its worker, at its turn: it exited, crashed, or was killed for a missed deadline
    KILLED = auto()  # its worker, at its turn, by a signal that may come from outside
    CANNOT_TRAVEL = auto()
    DIVERGED = auto()
    LOST = auto()


class Then(Enum):
    """The action for an environment."""

    QUARANTINE = auto()  # once more, in a lane of its own
    MAIN = auto()  # once more, rebuilt in the main process
    AGAIN = auto()  # once more, where it is
    STAY_IN_MAIN = auto()  # rebuilt in the main process, for good
    FAIL = auto()


class LaneThen(Enum):
    """The action for a lane."""

    RESTART = auto()
    QUARANTINE = auto()  # its environments play in lanes of their own, for the rest of the episode
    MAIN = auto()  # its environments play in the main process for this episode


@dataclass(frozen=True)
class Decision:
    """A decision about an environment.

    Attributes:
        then: The action.
        counts: The environment's counter to increment: ``"failures"``, ``"kills"`` or "".
    """

    then: Then
    counts: str = ""


@dataclass(frozen=True)
class Facts:
    """The state of an environment that failed.

    Attributes:
        in_main: Whether it lives in the main process.
        failures: How often it has failed at this request before.
        kills: How often its worker was killed at this request before.
        building: Whether it was being built.
        shared: Whether others of its tag share the failure: it happened as their class was loaded.
        may_end_main: Whether what it did at this request would have ended or stopped the main process.
    """

    in_main: bool = False
    failures: int = 0
    kills: int = 0
    building: bool = False
    shared: bool = False
    may_end_main: bool = False


def decide(trouble: Trouble, facts: Facts, settings: Settings) -> Decision:
    """Decide about an environment that failed; see the table above."""
    if trouble is Trouble.LOST:
        return Decision(Then.FAIL)
    if trouble is Trouble.CANNOT_TRAVEL and not facts.in_main:
        return Decision(Then.STAY_IN_MAIN)
    again = Then.AGAIN if facts.shared else Then.QUARANTINE
    if trouble is Trouble.KILLED and facts.kills < settings.max_restarts:
        return Decision(again, "kills")
    if settings.on_env_failure != "fallback":
        return Decision(Then.FAIL, "failures")
    is_last = trouble is Trouble.RAISED and not facts.in_main and (facts.building or facts.failures)
    if is_last and not facts.may_end_main:
        return Decision(Then.STAY_IN_MAIN, "failures")
    if facts.failures:
        return Decision(Then.FAIL, "failures")
    if facts.in_main or trouble is Trouble.DIVERGED:
        return Decision(Then.MAIN, "failures")
    return Decision(again, "failures")


def decide_lane(failure: LaneFailure, restarts: int, settings: Settings) -> LaneThen:
    """Decide about a lane whose worker is gone while no environment was at its turn; see the table above.

    ``restarts``: how often this lane has lost its worker this way in this episode, including this time.
    """
    is_hopeless = failure.cause is Cause.START and failure.seconds > 0
    if restarts <= settings.max_restarts and not is_hopeless:
        return LaneThen.RESTART
    return LaneThen.MAIN if failure.cause is Cause.START else LaneThen.QUARANTINE


def trouble_of(failure: LaneFailure) -> Trouble:
    """The kind of trouble that a lane's failure means for the environment that was at its turn."""
    return Trouble.KILLED if failure.may_come_from_outside else Trouble.ENDED


class Rest:
    """How long a lane whose workers do not start is left alone: a number of episodes that doubles each time.

    Attributes:
        episodes: The number still to come.
    """

    def __init__(self) -> None:
        self.episodes = 0
        self._times = 0

    def begin(self) -> None:
        """Begin a rest, twice as long as the last one."""
        self._times += 1
        self.episodes = 2 ** min(self._times + 1, 8)

    def pass_episode(self) -> None:
        """Count an episode that begins."""
        self.episodes = max(0, self.episodes - 1)
