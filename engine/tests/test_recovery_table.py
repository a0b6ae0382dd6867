"""The consequences of a failure, row by row: the tables of ``envlanes.recovery``, and that every call ends."""

from __future__ import annotations

import signal
from functools import cache

import pytest

from envlanes.recovery import NO_TRIES, Action, Tries, Trouble, decide, decide_worker
from envlanes.settings import ON_ENV_FAILURE, Settings
from envlanes.workers.handle import Ending
from envlanes.workers.worker import Cause, WorkerFailure

FALLBACK = Settings(max_restarts=2)
IN_MAIN, SHARED, NOWHERE = {"in_main": True}, {"shared": True}, dict[str, bool]()
COUNTED, ENDED, KILLED = Tries(1), Tries(1, 0, True), Tries(0, 1)

# row by row: what happened, its failures before, where it was; the action, and its failures after
ROWS: list[tuple[Trouble, Tries, dict[str, bool], Action, Tries]] = [
    (Trouble.RAISED, NO_TRIES, NOWHERE, Action.ALONE, COUNTED),
    (Trouble.RAISED, COUNTED, NOWHERE, Action.STAY_IN_MAIN, Tries(2)),
    (Trouble.RAISED, ENDED, NOWHERE, Action.FAIL, Tries(2, 0, True)),
    (Trouble.RAISED, Tries(0, 0, True), NOWHERE, Action.ALONE, ENDED),
    (Trouble.RAISED, NO_TRIES, IN_MAIN, Action.MAIN, COUNTED),
    (Trouble.RAISED, COUNTED, IN_MAIN, Action.FAIL, Tries(2)),
    (Trouble.ENDED, NO_TRIES, NOWHERE, Action.ALONE, ENDED),
    (Trouble.ENDED, COUNTED, NOWHERE, Action.FAIL, Tries(2, 0, True)),
    (Trouble.ENDED, Tries(0, 2), NOWHERE, Action.ALONE, Tries(1, 2, True)),
    (Trouble.ENDED, NO_TRIES, SHARED, Action.AGAIN, ENDED),
    (Trouble.ENDED, COUNTED, SHARED, Action.FAIL, Tries(2, 0, True)),
    (Trouble.KILLED, NO_TRIES, NOWHERE, Action.AGAIN, KILLED),
    (Trouble.KILLED, Tries(1, 1), NOWHERE, Action.AGAIN, Tries(1, 2)),
    (Trouble.KILLED, Tries(0, 2), NOWHERE, Action.ALONE, Tries(1, 2, True)),
    (Trouble.KILLED, Tries(1, 2), NOWHERE, Action.FAIL, Tries(2, 2, True)),
    (Trouble.KILLED, Tries(0, 2), SHARED, Action.AGAIN, Tries(1, 2, True)),
    (Trouble.CANNOT_TRAVEL, COUNTED, NOWHERE, Action.STAY_IN_MAIN, COUNTED),
    (Trouble.CANNOT_TRAVEL, NO_TRIES, IN_MAIN, Action.MAIN, COUNTED),
    (Trouble.DIVERGED, NO_TRIES, NOWHERE, Action.MAIN, COUNTED),
    (Trouble.DIVERGED, COUNTED, IN_MAIN, Action.FAIL, Tries(2)),
    (Trouble.LOST, NO_TRIES, NOWHERE, Action.FAIL, NO_TRIES),
]


@pytest.mark.parametrize(("trouble", "tries", "where", "action", "after"), ROWS, ids=str)
def test_each_row_of_the_table(trouble, tries, where, action, after):
    assert decide(trouble, tries, FALLBACK, **where) == (action, after)


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("on_env_failure", ["truncate", "raise"])
def test_without_fallback_there_is_one_try_but_for_kills_from_outside(trouble, on_env_failure):
    settings = Settings(max_restarts=2, on_env_failure=on_env_failure)  # type: ignore[arg-type]
    expected = {Trouble.KILLED: Action.AGAIN, Trouble.CANNOT_TRAVEL: Action.STAY_IN_MAIN}
    assert decide(trouble, NO_TRIES, settings)[0] is expected.get(trouble, Action.FAIL)
    assert decide(Trouble.KILLED, Tries(0, 2), settings)[0] is Action.FAIL


@pytest.mark.parametrize("on_env_failure", ON_ENV_FAILURE)
def test_whatever_happens_an_environment_is_over_after_a_bounded_number_of_tries(on_env_failure):
    settings = Settings(max_restarts=2, on_env_failure=on_env_failure)  # type: ignore[arg-type]
    longest = settings.max_restarts + 4  # kills, two failures in workers, the way to main, and the last failure

    @cache
    def ends(tries, in_main, left):
        """Whether an environment is over within so many tries, whatever happens from here on."""
        return left > 0 and all(is_over(tries, in_main, trouble, left) for trouble in Trouble)

    def is_over(tries, in_main, trouble, left):
        action, tries = decide(trouble, tries, settings, in_main=in_main)
        is_home = in_main or action in (Action.MAIN, Action.STAY_IN_MAIN)
        return action is Action.FAIL or ends(tries, is_home, left - 1)

    assert ends(NO_TRIES, False, longest)


def failure(cause, status=None, seconds=0.0):
    return WorkerFailure(cause, "worker 0", Ending("pid 4242", status), seconds=seconds)


DIED, NO_START, LATE_START = failure(Cause.DIED, 3), failure(Cause.START, 7), failure(Cause.START, -9, 60.0)

LANE_ROWS = [
    (DIED, 1, Action.AGAIN),
    (DIED, 2, Action.AGAIN),
    (DIED, 3, Action.ALONE),
    (failure(Cause.DIED, -signal.SIGKILL), 3, Action.ALONE),
    (failure(Cause.DIED, None), 3, Action.ALONE),
    (failure(Cause.TIMEOUT, -signal.SIGKILL, 60.0), 1, Action.AGAIN),  # of a batch that does not tell how far it is
    (failure(Cause.TIMEOUT, -signal.SIGKILL, 60.0), 3, Action.ALONE),
    (NO_START, 1, Action.AGAIN),
    (NO_START, 2, Action.AGAIN),
    (NO_START, 3, Action.MAIN),
    (LATE_START, 1, Action.MAIN),
]


@pytest.mark.parametrize(("lost", "restarts", "then"), LANE_ROWS)
def test_each_row_of_the_table_of_lanes(lost, restarts, then):
    assert decide_worker(lost, restarts, FALLBACK) is then


def test_without_restarts_the_first_death_is_too_many():
    settings = Settings(max_restarts=0)
    assert decide_worker(DIED, 1, settings) is Action.ALONE
    assert decide_worker(NO_START, 1, settings) is Action.MAIN
    assert decide(Trouble.KILLED, NO_TRIES, settings) == (Action.ALONE, ENDED)


@pytest.mark.parametrize(
    ("lost", "may_come_from_outside"),
    [
        (failure(Cause.DIED, -signal.SIGKILL), True),
        (failure(Cause.DIED, -signal.SIGTERM), True),
        (failure(Cause.DIED, None), True),
        (failure(Cause.DIED, -signal.SIGSEGV), False),
        (failure(Cause.DIED, 0), False),
        (failure(Cause.DIED, 3), False),
        (failure(Cause.TIMEOUT, -signal.SIGKILL, 0.3), False),  # our own signal
    ],
)
def test_a_kill_that_may_come_from_outside(lost, may_come_from_outside):
    assert lost.may_come_from_outside is may_come_from_outside
