"""The decisions that follow from failures and timeouts, as tables. Nothing is carried out here.

An environment that fails (:func:`decide`), with ``on_env_failure: fallback``:

    | what happened                              | the first time              | again                             |
    |--------------------------------------------|-----------------------------|-----------------------------------|
    | it raised, in a worker                     | once more, alone            | to main, where it stays; failed   |
    |                                            |                             |   if it may end main              |
    | it raised in main, or timed out there      | once more in main           | failed                            |
    | its step timed out, its worker exited or   | once more, alone            | failed                            |
    |   crashed at it                            |                             |                                   |
    | its worker was killed at it (SIGKILL,      | once more where it is, up   | as if it had exited               |
    |   SIGTERM): perhaps from outside           |   to ``max_restarts`` times |                                   |
    | its class did that as it was loaded        | once more, with its tag     | failed                            |
    | it, or its result, cannot travel           | to main, where it stays     |                                   |
    | its replay differs                         | once more in main           | failed                            |
    | any of these in main, where it had gone to | failed; the next episode is |                                   |
    |   stay since it raised in workers          |   tried in a worker again   |                                   |
    | its state is lost, and it cannot replay    | failed                      |                                   |
    | any of these where it moves to, but for an | back, where its replica was |                                   |
    |   end of its worker at a turn              |   kept, and its type stays  |                                   |

A worker whose process is gone while no environment was at its turn (:func:`decide_worker`):

    | what happened            | up to ``max_restarts`` times            | after that                           |
    |--------------------------|-----------------------------------------|--------------------------------------|
    | it ended while idle      | a new worker                            | its environments are played alone    |
    | it did not come up       | a new worker                            | to main, until the next reset of all |
    | it timed out starting    | to main at once, likewise               |                                      |

An environment that is played alone is played after the others of its worker, until the call is over. The ends of a
worker count until one of its environments is reset; but kills that may come from outside, and starts, count within a
call alone: something that kills workers at random, such as the kernel when memory is short, is nobody's fault.

Every row either finishes an environment or counts something that is bounded, so that every call ends.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from envlanes.settings import Settings
from envlanes.workers.worker import Cause, WorkerFailure


class Trouble(Enum):
    """The kind of trouble of an environment."""

    RAISED = auto()  # or, in main, it was interrupted at its deadline
    ENDED = auto()  # its worker, at its turn: it exited, crashed, or was killed for a missed deadline
    KILLED = auto()  # its worker, at its turn, by a signal that may come from outside
    CANNOT_TRAVEL = auto()
    DIVERGED = auto()
    LOST = auto()


class Action(Enum):
    """An action for an environment, or for the environments of a worker."""

    ALONE = auto()  # once more, alone in its worker
    MAIN = auto()  # once more, rebuilt in the main process
    AGAIN = auto()  # once more, where it is, if need be with a new worker
    STAY_IN_MAIN = auto()  # rebuilt in the main process, for good
    FAIL = auto()


class Tries(NamedTuple):
    """Failures of an environment at the current request.

    Attributes:
        failures: Their number.
        kills: Number of kills of its worker, perhaps from outside, which are no failures.
        may_end_main: Whether what it did would have ended or stopped the main process.
    """

    failures: int = 0
    kills: int = 0
    may_end_main: bool = False


NO_TRIES = Tries()


def decide(
    trouble: Trouble, tries: Tries, settings: Settings, *, in_main: bool = False, shared: bool = False
) -> tuple[Action, Tries]:
    """Decide about an environment that failed; see the table above.

    Args:
        trouble: The kind of trouble.
        tries: Its failures before.
        settings: The engine's settings.
        in_main: Whether it lives in the main process.
        shared: Whether others of its tag share the failure: it happened as their class was loaded.

    Returns:
        The action, and its failures now.
    """
    # First: nothing brings it back, whatever the settings say.
    if trouble is Trouble.LOST:
        return Action.FAIL, tries
    if trouble is Trouble.CANNOT_TRAVEL and not in_main:
        return Action.STAY_IN_MAIN, tries
    # Before the settings are asked: a kill from outside is no failure of the environment's, so "raise" and "truncate"
    # retry it too.
    if trouble is Trouble.KILLED and tries.kills < settings.max_restarts:
        return Action.AGAIN, tries._replace(kills=tries.kills + 1)
    # An exit, a crash or a hang in C would take main with it.
    may_end_main = tries.may_end_main or trouble in (Trouble.ENDED, Trouble.KILLED)
    again = tries._replace(failures=tries.failures + 1, may_end_main=may_end_main)
    if settings.on_env_failure != "fallback":
        return Action.FAIL, again
    if tries.failures:
        may_stay = trouble is Trouble.RAISED and not in_main and not may_end_main
        return Action.STAY_IN_MAIN if may_stay else Action.FAIL, again
    if in_main or trouble is Trouble.DIVERGED:
        return Action.MAIN, again
    return Action.AGAIN if shared else Action.ALONE, again


def decide_worker(failure: WorkerFailure, losses: int, settings: Settings) -> Action:
    """Decide about a worker whose process is gone while no environment was at its turn; see the table above.

    ``losses``: number of processes that it has lost this way, this one included.
    """
    # A start that timed out has taken all of `startup_timeout`: each further try would hold up the call for as long.
    is_hopeless = failure.cause is Cause.START and failure.seconds > 0
    if losses <= settings.max_restarts and not is_hopeless:
        return Action.AGAIN
    return Action.MAIN if failure.cause is Cause.START else Action.ALONE
