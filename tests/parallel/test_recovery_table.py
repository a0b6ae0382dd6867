"""What follows from a failure, row by row: the tables of ``envlanes.recovery``, and that every call ends."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache

import pytest

from envlanes.lanes.failure import Cause, LaneFailure
from envlanes.lanes.handle import Ending
from envlanes.recovery import Decision, Facts, LaneThen, Then, Trouble, decide, decide_lane, trouble_of
from envlanes.settings import ON_ENV_FAILURE, Settings

FALLBACK = Settings(max_restarts=2)
IN_LANE, IN_MAIN = Facts(), Facts(in_main=True)

# row by row: what happened, what is known, what follows the first time and again
ROWS: list[tuple[Trouble, Facts, Decision]] = [
    (Trouble.RAISED, IN_LANE, Decision(Then.QUARANTINE, "failures")),
    (Trouble.RAISED, replace(IN_LANE, failures=1), Decision(Then.STAY_IN_MAIN, "failures")),
    (Trouble.RAISED, replace(IN_LANE, failures=1, may_end_main=True), Decision(Then.FAIL, "failures")),
    (Trouble.RAISED, replace(IN_LANE, may_end_main=True), Decision(Then.QUARANTINE, "failures")),
    (Trouble.RAISED, IN_MAIN, Decision(Then.MAIN, "failures")),
    (Trouble.RAISED, replace(IN_MAIN, failures=1), Decision(Then.FAIL, "failures")),
    (Trouble.RAISED, replace(IN_LANE, building=True), Decision(Then.STAY_IN_MAIN, "failures")),
    (Trouble.RAISED, replace(IN_LANE, building=True, may_end_main=True), Decision(Then.QUARANTINE, "failures")),
    (Trouble.RAISED, replace(IN_MAIN, building=True, failures=1), Decision(Then.FAIL, "failures")),
    (Trouble.OVERDUE, IN_MAIN, Decision(Then.MAIN, "failures")),
    (Trouble.OVERDUE, replace(IN_MAIN, failures=1), Decision(Then.FAIL, "failures")),
    (Trouble.ENDED, IN_LANE, Decision(Then.QUARANTINE, "failures")),
    (Trouble.ENDED, replace(IN_LANE, building=True), Decision(Then.QUARANTINE, "failures")),
    (Trouble.ENDED, replace(IN_LANE, failures=1), Decision(Then.FAIL, "failures")),
    (Trouble.ENDED, replace(IN_LANE, kills=2), Decision(Then.QUARANTINE, "failures")),
    (Trouble.ENDED, replace(IN_LANE, shared=True), Decision(Then.AGAIN, "failures")),
    (Trouble.ENDED, replace(IN_LANE, shared=True, failures=1), Decision(Then.FAIL, "failures")),
    (Trouble.KILLED, IN_LANE, Decision(Then.QUARANTINE, "kills")),
    (Trouble.KILLED, replace(IN_LANE, kills=1), Decision(Then.QUARANTINE, "kills")),
    (Trouble.KILLED, replace(IN_LANE, kills=1, failures=1), Decision(Then.QUARANTINE, "kills")),
    (Trouble.KILLED, replace(IN_LANE, kills=2), Decision(Then.QUARANTINE, "failures")),
    (Trouble.KILLED, replace(IN_LANE, kills=2, failures=1), Decision(Then.FAIL, "failures")),
    (Trouble.KILLED, replace(IN_LANE, shared=True), Decision(Then.AGAIN, "kills")),
    (Trouble.KILLED, replace(IN_LANE, shared=True, kills=2), Decision(Then.AGAIN, "failures")),
    (Trouble.CANNOT_TRAVEL, IN_LANE, Decision(Then.STAY_IN_MAIN)),
    (Trouble.CANNOT_TRAVEL, replace(IN_LANE, failures=1), Decision(Then.STAY_IN_MAIN)),
    (Trouble.CANNOT_TRAVEL, IN_MAIN, Decision(Then.MAIN, "failures")),
    (Trouble.DIVERGED, IN_LANE, Decision(Then.MAIN, "failures")),
    (Trouble.DIVERGED, IN_MAIN, Decision(Then.MAIN, "failures")),
    (Trouble.DIVERGED, replace(IN_MAIN, failures=1), Decision(Then.FAIL, "failures")),
    (Trouble.LOST, IN_LANE, Decision(Then.FAIL)),
    (Trouble.LOST, IN_MAIN, Decision(Then.FAIL)),
]


@pytest.mark.parametrize(("trouble", "facts", "decision"), ROWS, ids=str)
def test_each_row_of_the_table(trouble: Trouble, facts: Facts, decision: Decision) -> None:
    assert decide(trouble, facts, FALLBACK) == decision


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("on_env_failure", ["truncate", "raise"])
def test_without_fallback_there_is_one_try_but_for_kills_from_outside(trouble: Trouble, on_env_failure: str) -> None:
    settings = Settings(max_restarts=2, on_env_failure=on_env_failure)  # type: ignore[arg-type]
    expected = {
        Trouble.KILLED: Decision(Then.QUARANTINE, "kills"),
        Trouble.CANNOT_TRAVEL: Decision(Then.STAY_IN_MAIN),
        Trouble.LOST: Decision(Then.FAIL),
    }
    assert decide(trouble, IN_LANE, settings) == expected.get(trouble, Decision(Then.FAIL, "failures"))
    assert decide(Trouble.KILLED, replace(IN_LANE, kills=2), settings).then is Then.FAIL


@pytest.mark.parametrize("on_env_failure", ON_ENV_FAILURE)
@pytest.mark.parametrize("building", [False, True])
def test_whatever_happens_an_environment_is_over_after_a_bounded_number_of_tries(
    on_env_failure: str, building: bool
) -> None:
    settings = Settings(max_restarts=2, on_env_failure=on_env_failure)  # type: ignore[arg-type]
    longest = settings.max_restarts + 4  # kills, two failures in workers, the way to main, and the last failure

    @cache
    def ends(facts: Facts, tries: int) -> bool:
        """Whether an environment is over within so many tries, whatever happens from here on."""
        return tries > 0 and all(is_over(facts, trouble, tries) for trouble in Trouble)

    def is_over(facts: Facts, trouble: Trouble, tries: int) -> bool:
        decision = decide(trouble, facts, settings)
        if decision.then is Then.FAIL:
            return True
        if decision.counts:
            facts = replace(facts, **{decision.counts: getattr(facts, decision.counts) + 1})
        in_main = facts.in_main or decision.then in (Then.MAIN, Then.STAY_IN_MAIN)
        return ends(replace(facts, in_main=in_main), tries - 1)

    assert ends(Facts(building=building), longest)


def failure(cause: Cause, status: int | None = None, seconds: float = 0.0) -> LaneFailure:
    return LaneFailure(cause, "worker 0", Ending("pid 4242", status), seconds=seconds)


DIED, NO_START, LATE_START = failure(Cause.DIED, 3), failure(Cause.START, 7), failure(Cause.START, -9, 60.0)

LANE_ROWS = [
    (DIED, 1, LaneThen.RESTART),
    (DIED, 2, LaneThen.RESTART),
    (DIED, 3, LaneThen.QUARANTINE),
    (failure(Cause.DIED, -signal.SIGKILL), 3, LaneThen.QUARANTINE),
    (failure(Cause.DIED, None), 3, LaneThen.QUARANTINE),
    (failure(Cause.TIMEOUT, -signal.SIGKILL, 60.0), 1, LaneThen.RESTART),  # of a batch that does not tell how far it is
    (failure(Cause.TIMEOUT, -signal.SIGKILL, 60.0), 3, LaneThen.QUARANTINE),
    (NO_START, 1, LaneThen.RESTART),
    (NO_START, 2, LaneThen.RESTART),
    (NO_START, 3, LaneThen.MAIN),
    (LATE_START, 1, LaneThen.MAIN),
]


@pytest.mark.parametrize(("lost", "restarts", "then"), LANE_ROWS)
def test_each_row_of_the_table_of_lanes(lost: LaneFailure, restarts: int, then: LaneThen) -> None:
    assert decide_lane(lost, restarts, FALLBACK) is then


def test_without_restarts_the_first_death_is_too_many() -> None:
    settings = Settings(max_restarts=0)
    assert decide_lane(DIED, 1, settings) is LaneThen.QUARANTINE
    assert decide_lane(NO_START, 1, settings) is LaneThen.MAIN
    assert decide(Trouble.KILLED, IN_LANE, settings) == Decision(Then.QUARANTINE, "failures")


@pytest.mark.parametrize(
    ("lost", "trouble"),
    [
        (failure(Cause.DIED, -signal.SIGKILL), Trouble.KILLED),
        (failure(Cause.DIED, -signal.SIGTERM), Trouble.KILLED),
        (failure(Cause.DIED, None), Trouble.KILLED),
        (failure(Cause.DIED, -signal.SIGSEGV), Trouble.ENDED),
        (failure(Cause.DIED, 0), Trouble.ENDED),
        (failure(Cause.DIED, 3), Trouble.ENDED),
        (failure(Cause.TIMEOUT, -signal.SIGKILL, 0.3), Trouble.ENDED),  # our own signal
    ],
)
def test_what_may_come_from_outside(lost: LaneFailure, trouble: Trouble) -> None:
    assert trouble_of(lost) is trouble
