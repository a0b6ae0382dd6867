"""What follows from a failure, row by row: the tables of ``envlanes.recovery``, and that every call ends."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache

import pytest

from envlanes.recovery import Action, Facts, Trouble, decide, decide_worker
from envlanes.settings import ON_ENV_FAILURE, Settings
from envlanes.workers.failure import Cause, WorkerFailure
from envlanes.workers.handle import Ending

FALLBACK = Settings(max_restarts=2)
IN_LANE, IN_MAIN = Facts(), Facts(in_main=True)

# row by row: what happened, what is known, what follows the first time and again
ROWS: list[tuple[Trouble, Facts, tuple[Action, str]]] = [
    (Trouble.RAISED, IN_LANE, (Action.QUARANTINE, "failures")),
    (Trouble.RAISED, replace(IN_LANE, failures=1), (Action.STAY_IN_MAIN, "failures")),
    (Trouble.RAISED, replace(IN_LANE, failures=1, may_end_main=True), (Action.FAIL, "failures")),
    (Trouble.RAISED, replace(IN_LANE, may_end_main=True), (Action.QUARANTINE, "failures")),
    (Trouble.RAISED, IN_MAIN, (Action.MAIN, "failures")),
    (Trouble.RAISED, replace(IN_MAIN, failures=1), (Action.FAIL, "failures")),
    (Trouble.ENDED, IN_LANE, (Action.QUARANTINE, "failures")),
    (Trouble.ENDED, replace(IN_LANE, failures=1), (Action.FAIL, "failures")),
    (Trouble.ENDED, replace(IN_LANE, kills=2), (Action.QUARANTINE, "failures")),
    (Trouble.ENDED, replace(IN_LANE, shared=True), (Action.AGAIN, "failures")),
    (Trouble.ENDED, replace(IN_LANE, shared=True, failures=1), (Action.FAIL, "failures")),
    (Trouble.KILLED, IN_LANE, (Action.QUARANTINE, "kills")),
    (Trouble.KILLED, replace(IN_LANE, kills=1), (Action.QUARANTINE, "kills")),
    (Trouble.KILLED, replace(IN_LANE, kills=1, failures=1), (Action.QUARANTINE, "kills")),
    (Trouble.KILLED, replace(IN_LANE, kills=2), (Action.QUARANTINE, "failures")),
    (Trouble.KILLED, replace(IN_LANE, kills=2, failures=1), (Action.FAIL, "failures")),
    (Trouble.KILLED, replace(IN_LANE, shared=True), (Action.AGAIN, "kills")),
    (Trouble.KILLED, replace(IN_LANE, shared=True, kills=2), (Action.AGAIN, "failures")),
    (Trouble.CANNOT_TRAVEL, IN_LANE, (Action.STAY_IN_MAIN, "")),
    (Trouble.CANNOT_TRAVEL, replace(IN_LANE, failures=1), (Action.STAY_IN_MAIN, "")),
    (Trouble.CANNOT_TRAVEL, IN_MAIN, (Action.MAIN, "failures")),
    (Trouble.DIVERGED, IN_LANE, (Action.MAIN, "failures")),
    (Trouble.DIVERGED, IN_MAIN, (Action.MAIN, "failures")),
    (Trouble.DIVERGED, replace(IN_MAIN, failures=1), (Action.FAIL, "failures")),
    (Trouble.LOST, IN_LANE, (Action.FAIL, "")),
    (Trouble.LOST, IN_MAIN, (Action.FAIL, "")),
]


@pytest.mark.parametrize(("trouble", "facts", "decision"), ROWS, ids=str)
def test_each_row_of_the_table(trouble, facts, decision):
    assert decide(trouble, facts, FALLBACK) == decision


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("on_env_failure", ["truncate", "raise"])
def test_without_fallback_there_is_one_try_but_for_kills_from_outside(trouble, on_env_failure):
    settings = Settings(max_restarts=2, on_env_failure=on_env_failure)  # type: ignore[arg-type]
    expected = {
        Trouble.KILLED: (Action.QUARANTINE, "kills"),
        Trouble.CANNOT_TRAVEL: (Action.STAY_IN_MAIN, ""),
        Trouble.LOST: (Action.FAIL, ""),
    }
    assert decide(trouble, IN_LANE, settings) == expected.get(trouble, (Action.FAIL, "failures"))
    assert decide(Trouble.KILLED, replace(IN_LANE, kills=2), settings)[0] is Action.FAIL


@pytest.mark.parametrize("on_env_failure", ON_ENV_FAILURE)
def test_whatever_happens_an_environment_is_over_after_a_bounded_number_of_tries(on_env_failure):
    settings = Settings(max_restarts=2, on_env_failure=on_env_failure)  # type: ignore[arg-type]
    longest = settings.max_restarts + 4  # kills, two failures in workers, the way to main, and the last failure

    @cache
    def ends(facts, tries):
        """Whether an environment is over within so many tries, whatever happens from here on."""
        return tries > 0 and all(is_over(facts, trouble, tries) for trouble in Trouble)

    def is_over(facts, trouble, tries):
        action, counter = decide(trouble, facts, settings)
        if action is Action.FAIL:
            return True
        if counter:
            facts = replace(facts, **{counter: getattr(facts, counter) + 1})
        in_main = facts.in_main or action in (Action.MAIN, Action.STAY_IN_MAIN)
        return ends(replace(facts, in_main=in_main), tries - 1)

    assert ends(Facts(), longest)


def failure(cause, status=None, seconds=0.0):
    return WorkerFailure(cause, "worker 0", Ending("pid 4242", status), seconds=seconds)


DIED, NO_START, LATE_START = failure(Cause.DIED, 3), failure(Cause.START, 7), failure(Cause.START, -9, 60.0)

LANE_ROWS = [
    (DIED, 1, Action.AGAIN),
    (DIED, 2, Action.AGAIN),
    (DIED, 3, Action.QUARANTINE),
    (failure(Cause.DIED, -signal.SIGKILL), 3, Action.QUARANTINE),
    (failure(Cause.DIED, None), 3, Action.QUARANTINE),
    (failure(Cause.TIMEOUT, -signal.SIGKILL, 60.0), 1, Action.AGAIN),  # of a batch that does not tell how far it is
    (failure(Cause.TIMEOUT, -signal.SIGKILL, 60.0), 3, Action.QUARANTINE),
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
    assert decide_worker(DIED, 1, settings) is Action.QUARANTINE
    assert decide_worker(NO_START, 1, settings) is Action.MAIN
    assert decide(Trouble.KILLED, IN_LANE, settings) == (Action.QUARANTINE, "failures")


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
