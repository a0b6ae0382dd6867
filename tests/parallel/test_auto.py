"""The rule of ``auto``, decision by decision."""

from dataclasses import replace

import pytest

from ragen.parallel.episode.clock import Spent, Usage, spent_on
from ragen.parallel.placement import (
    ALL_MAIN,
    RESET,
    Limits,
    Plan,
    Record,
    Situation,
    State,
    break_off,
    decide,
    first_look,
)
from ragen.parallel.stats import CallTime, CostMeter, Episode, MeanCosts, TagCosts

LIMITS = Limits(4, cpus=2)
MS = 1e-3
SHARED = Plan(frozenset(["T"]), 1, 0.5)


def costs(seconds, turns=320, waited=0.0, **given):
    return TagCosts(seconds, waited_s=waited, turns=turns, **given)


def given(ready=1, members=64, limits=LIMITS, **tags):
    tags = tags or {"T": costs(100 * MS)}
    return Situation(tags, dict.fromkeys(tags, members), limits, ready)


def calls(seconds, local=0.0, lane=0.0, idle=0.0, count=5):
    """The calls of an episode, all alike, by place."""
    return {place: CallTime(seconds, 64, local, lane, int(lane > 0), idle) for place in range(count)}


def record(*episodes, **state):
    known = Record(**state)
    for episode in episodes:
        known = known.noted(episode)
    return known


MAIN = calls(24 * MS, local=20 * MS)
FAST = calls(14 * MS, local=10 * MS, lane=10 * MS)
SLOW = calls(30 * MS, local=10 * MS, lane=10 * MS, idle=8 * MS)


def state(now=ALL_MAIN, kept=ALL_MAIN, main=(MAIN, MAIN), shared=(), steady=5, **more):
    due = {name: more.pop(name) for name in ("main_due", "shared_due", "losses") if name in more}
    records = {
        ALL_MAIN.out: record(*main, losses=1, due=due.get("main_due", 100 if now.out or kept.out else 0)),
        SHARED.out: record(*shared, due=due.get("shared_due", 0), losses=due.get("losses", 0)),
    }
    return State(now, kept, records, episode=20, steady=steady, **more)


WAITS = costs(100 * MS, waited=100 * MS)

# While main is kept


@pytest.mark.parametrize(
    ("why", "before", "situation", "out", "starting"),
    [
        ("two episodes are known and the forecast is good", state(), given(), "T", 0),
        ("lanes are not ready", state(), given(ready=0), "", 1),
        ("one episode is known", state(main=(MAIN,)), given(), "", 1),
        ("the first look had workers started", replace(state(main=(MAIN,), starting=1), episode=1), given(), "T", 0),
        ("nothing is known", state(main=()), Situation({}, {"T": 64}, LIMITS, 1), "", 0),
        ("environments are cheap", state(main=[calls(4 * MS, 1 * MS)] * 2), given(T=costs(5 * MS)), "", 0),
        ("it lost lately", state(shared_due=22), given(), "", 0),
        ("it lost long ago", state(shared_due=21), given(), "T", 0),
        ("there is one processor", state(), given(limits=Limits(4, 1)), "", 0),
        ("there is one processor, but environments wait", state(), given(4, limits=Limits(4, 1), T=WAITS), "T", 0),
        ("lanes are not far away", state(), given(limits=replace(LIMITS, round_trip_s=1 * MS)), "T", 0),
        ("lanes are too far away", state(), given(limits=replace(LIMITS, round_trip_s=15 * MS)), "", 0),
        ("environments wait, and need more lanes than are ready", state(), given(1, T=WAITS), "", 4),
        ("of two tags one is cheap", state(), given(T=costs(0.1), C=costs(0.001)), "T", 0),
        ("three tags are heavy", state(), given(T=costs(0.05), U=costs(0.05), V=costs(0.05)), "TU", 0),
    ],
)  # fmt: skip
def test_main_is_challenged_where_a_forecast_saves_a_tenth(why, before, situation, out, starting):
    after = decide(before, situation)
    assert after.now.out == frozenset(out), why
    assert (after.kept, after.starting) == (ALL_MAIN, starting), why
    if out:
        assert after.now.share == 1 / (after.now.lanes + 1) and not after.record(after.now).calls


# While something is tried


@pytest.mark.parametrize(
    ("why", "shared", "out", "is_kept"),
    [
        ("it is faster", [FAST], "T", True),
        ("it is slower once", [SLOW], "T", False),
        ("it is slower twice", [SLOW, SLOW], "", True),
        ("it is not a tenth faster", [calls(22 * MS, 10 * MS, 10 * MS)] * 2, "", True),
        ("one call was disturbed", [{**FAST, 2: CallTime(1.0, 64, 10 * MS, 10 * MS, 1)}, FAST], "T", True),
        ("main was slower than its turns are now", [calls(14 * MS, 4 * MS, 4 * MS)] * 2, "", True),
        ("its episode was shorter", [{0: FAST[0]}], "T", True),
    ],
)
def test_a_shared_plan_is_kept_where_it_is_a_tenth_faster_and_has_two_tries(why, shared, out, is_kept):
    after = decide(state(now=SHARED, shared=shared), given())
    assert after.now.out == frozenset(out), why
    assert (not after.is_trying) == is_kept, why


@pytest.mark.parametrize(
    ("why", "main", "out", "is_kept"),
    [
        ("main is slower", [MAIN], "T", True),
        ("main is faster, once", [calls(13 * MS, 12 * MS)], "", False),
        ("main is faster, twice", [calls(13 * MS, 12 * MS)] * 2, "", True),
    ],
)
def test_main_is_gone_back_to_where_it_is_no_slower_twice(why, main, out, is_kept):
    after = decide(state(now=ALL_MAIN, kept=SHARED, main=main, shared=[FAST] * 3), given())
    assert after.now.out == frozenset(out), why
    assert (not after.is_trying) == is_kept, why


def test_what_lost_is_tried_again_after_a_time_that_grows_with_its_cost_and_doubles():
    for losses in range(3):
        cheap, dear = (
            decide(state(now=SHARED, shared=[calls(seconds, 10 * MS, 10 * MS)] * 2, losses=losses), given())
            .record(SHARED)
            .due
            for seconds in (24 * MS, 48 * MS)
        )
        assert (cheap - 21, dear - 21) == (16 * 2**losses, 32 * 2**losses)


def test_what_is_dear_to_build_elsewhere_is_tried_less_often():
    situation = given(T=costs(100 * MS, build_s=1.2))
    after = decide(state(now=SHARED, shared=[calls(24 * MS, 10 * MS, 10 * MS)] * 2), situation)
    assert after.record(SHARED).due - 21 == 16 * 21


def test_the_share_stays_even_in_a_second_try_where_resets_take_most_so_that_its_reset_tells_something():
    reset = CallTime(500 * MS, 64, 500 * MS)
    shared = calls(26 * MS, 1 * MS, 10 * MS, idle=9 * MS)
    before = state(now=SHARED, main=[{**MAIN, RESET: reset}] * 2, shared=[shared])
    after = decide(before, given())
    assert after.now == SHARED and after.is_trying
    won = after.noted({**shared, RESET: CallTime(260 * MS, 64, 240 * MS, 240 * MS, 1)})
    assert decide(won, given()).kept.out == SHARED.out


# While a shared plan is kept


@pytest.mark.parametrize(
    ("why", "more", "out"),
    [
        ("it is faster", {"shared": [FAST] * 3}, "T"),
        ("it became slower than main was", {"shared": [SLOW] * 3}, ""),
        ("it was slower for one episode", {"shared": [FAST, FAST, SLOW]}, "T"),
        ("it has just come back", {"shared": [SLOW] * 3, "steady": 0}, "T"),
        ("turns became cheap, and main would be faster", {"shared": [calls(14 * MS, 4 * MS, 4 * MS)] * 3}, ""),
        ("main was not timed for long", {"shared": [FAST] * 3, "main_due": 21}, ""),
        ("main was never timed", {"shared": [FAST] * 3, "main": ()}, "T"),
        ("main was never timed, nor is it planned", {"shared": [FAST] * 3, "main": (), "main_due": 0}, "T"),
    ],
)
def test_a_shared_plan_is_compared_with_main_now_and_then_and_when_in_doubt(why, more, out):
    after = decide(state(now=SHARED, kept=SHARED, **{"steady": 1, **more}), given())
    assert after.now.out == frozenset(out), why
    assert after.kept.out == SHARED.out, why
    assert after.record(ALL_MAIN).due > 21 or not out


@pytest.mark.parametrize(
    ("why", "played", "share"),
    [
        ("they end together", calls(14 * MS, 10 * MS, 10 * MS), 0.5),
        ("main waits a little", calls(14 * MS, 10 * MS, 10 * MS, idle=0.9 * MS), 0.5),
        ("main waits for messages", calls(16 * MS, 10 * MS, 10 * MS, idle=4 * MS), 0.5),
        ("main waits for workers", calls(16 * MS, 8 * MS, 12 * MS, idle=4 * MS), 0.6),
        ("lanes wait", calls(18 * MS, 12 * MS, 8 * MS), 0.4),
        ("main waits very long", calls(20 * MS, 1 * MS, 19 * MS, idle=18 * MS), 0.75),
    ],
)
def test_main_s_share_moves_so_that_main_and_lanes_end_together(why, played, share):
    after = decide(state(now=SHARED, kept=SHARED, shared=[played] * 2), given())
    assert after.now.share == pytest.approx(share), why
    assert after.now == after.kept


def test_a_share_is_not_moved_by_less_than_an_environment():
    played = calls(16 * MS, 8 * MS, 12 * MS, idle=4 * MS)
    before = state(now=SHARED, kept=SHARED, shared=[played] * 2)
    assert decide(before, given(members=8)).now == SHARED


@pytest.mark.parametrize(
    ("why", "cost", "ready", "lanes", "starting"),
    [
        ("it computes, as it did", costs(100 * MS), 16, 1, 0),
        ("it waits a little", costs(100 * MS, waited=30 * MS), 16, 1, 0),
        ("it waits half of the time", costs(100 * MS, waited=50 * MS), 16, 3, 0),
        ("it has come to wait", costs(1.0, waited=1.0), 16, 16, 0),
        ("it has come to wait, but workers are not up", costs(1.0, waited=1.0), 1, 1, 16),
        ("messages would cost more than it waits", costs(100 * MS, waited=100 * MS), 16, 10, 0),
        ("it stood in line", costs(100 * MS, queued_s=100 * MS), 16, 1, 0),
        ("building it again is dear", costs(100 * MS, waited=100 * MS, build_s=9.0), 16, 1, 0),
    ],
)
def test_the_number_of_workers_follows_what_becomes_known_of_waiting(why, cost, ready, lanes, starting):
    before = state(now=SHARED, kept=SHARED, shared=[FAST] * 3)
    after = decide(before, given(ready, limits=Limits(16, 2), T=cost))
    assert (after.now.lanes, after.starting, after.is_trying) == (lanes, starting, False), why


# Within the first episode


def seen(turn=20 * MS, turns=2, reset=0.0, calls=0, dearest=None, **spent):
    """An episode so far: so many turns of environments that were reset, in so many calls that are over."""
    episode = Episode(calls=[CallTime(64 * turn, 64, 64 * turn)] * calls)
    episode.add({"T": spent_on([reset] * 64)}, are_turns=False)
    first = turn if dearest is None else dearest
    waits = spent.get("waits", 0)
    played = [first] + [turn] * (turns - 1)
    usage = Usage((1 - waits) * sum(played), waits * sum(played))
    episode.add({"T": spent_on(played, usage, sum(played))} if turns else {}, are_turns=True)
    return episode


@pytest.mark.parametrize(
    ("why", "episode", "left", "limits", "ready", "lanes", "starting"),
    [
        ("two turns of 20 ms are known, 62 are left", seen(), 62, LIMITS, 1, 1, 0),
        ("workers are not up", seen(), 62, LIMITS, 0, 0, 1),
        ("turns of 20 us are not worth a start", seen(turn=20e-6), 62, LIMITS, 0, 0, 0),
        ("nor the message", seen(turn=1e-6), 62, LIMITS, 1, 0, 0),
        ("one turn is not enough", seen(turns=1), 63, LIMITS, 1, 0, 0),
        ("the first turn imported something", seen(turn=1e-6, dearest=3.0), 62, LIMITS, 1, 0, 0),
        ("it is the last turn, and little is left", seen(), 10, Limits(4, 2, turns=1), 0, 0, 0),
        ("it is the last turn, and much is left", seen(), 62, Limits(4, 2, turns=1), 0, 0, 1),
        ("a reset would have to be made again in a worker", seen(reset=1.0), 62, LIMITS, 1, 0, 0),
        ("there is one processor", seen(), 62, Limits(4, 1), 1, 0, 0),
        ("there is one processor, but environments wait", seen(waits=1.0), 62, Limits(4, 1), 4, 4, 0),
        ("environments wait half of the time", seen(waits=0.5), 62, Limits(16, 2), 3, 3, 0),
        ("environments wait, and 16 workers may start", seen(waits=0.99), 62, Limits(16, 2), 1, 0, 16),
        ("between two calls", seen(turns=64, calls=1), None, LIMITS, 1, 1, 0),
        ("as much would be played again as is expected", seen(turns=1024, calls=16), None, LIMITS, 1, 0, 0),
        ("an episode of 2 calls is not known to", seen(turn=1 * MS, turns=128, calls=2), None, LIMITS, 0, 0, 0),
        ("its episode is over", seen(turns=128, calls=2), None, Limits(4, 2, turns=2), 1, 0, 0),
    ],
)  # fmt: skip
def test_the_first_episode_goes_on_in_workers_where_what_is_left_takes_longer_than_their_start(
    why, episode, left, limits, ready, lanes, starting
):
    situation = given(ready, limits=limits, T=episode.tags["T"])
    after = first_look(State(episode=1), situation, episode, None if left is None else {"T": left})
    assert (after.now.lanes, after.starting) == (lanes, starting), why


def test_in_the_first_episode_a_tag_that_waits_goes_out_alone_though_cheap_ones_would_bring_more_workers():
    episode = seen(waits=0.99)
    for are_turns in (False, True):
        episode.add({"cheap": spent_on([20e-6] * 64)}, are_turns=are_turns)
    situation = given(64, members=32, limits=Limits(64, 2), **episode.tags)
    assert first_look(State(episode=1), situation, episode, {"T": 30}).now.out == {"T"}


def test_in_the_first_episode_few_environments_that_wait_are_not_shared_with_more_workers_than_they_can_use():
    episode = seen(waits=0.99, turn=100 * MS)
    for are_turns in (False, True):
        episode.add({"cheap": spent_on([20e-6] * 64)}, are_turns=are_turns)
    situation = replace(given(64, limits=Limits(64, 2), **episode.tags), members={"T": 4, "cheap": 4})
    after = first_look(State(episode=1), situation, episode, {"T": 2})
    assert (after.now.out, after.now.lanes) == ({"T"}, 3)


@pytest.mark.parametrize(("behind", "lanes"), [({}, 0), ({"T": 1024}, 0), ({"T": 64}, 1)])
def test_in_the_first_episode_only_turns_since_the_last_snapshots_are_played_again(behind, lanes):
    episode = seen(turns=1024, calls=16)
    situation = replace(given(1, T=episode.tags["T"]), behind=behind)
    assert first_look(State(episode=1), situation, episode).now.lanes == lanes


@pytest.mark.parametrize(
    ("why", "reset", "left", "ready", "lanes", "starting"),
    [
        ("resets of 20 ms are worth a start", 20 * MS, 60, 0, 0, 1),
        ("and are played in workers once those are up", 20 * MS, 60, 1, 1, 0),
        ("resets of 1 ms are not", 1 * MS, 60, 0, 0, 0),
        ("few are left", 20 * MS, 10, 0, 0, 0),
    ],
)
def test_a_first_reset_that_takes_long_is_shared_too(why, reset, left, ready, lanes, starting):
    episode = Episode()
    episode.add({"T": spent_on([reset] * (64 - left))}, are_turns=False)
    situation = given(ready, T=episode.tags["T"])
    after = first_look(State(episode=1), situation, episode, {"T": left}, is_reset=True)
    assert (after.now.lanes, after.starting) == (lanes, starting), why


@pytest.mark.parametrize(
    ("busy", "cpus", "most", "envs", "workers"),
    [
        (1.0, 2, 64, 32, 1),
        (1.0, 1, 64, 32, 0),
        (1.0, 8, 64, 32, 7),
        (0.98, 2, 64, 32, 1),
        (1.02, 2, 64, 32, 1),
        (1.05, 8, 64, 32, 7),
        (0.5, 2, 64, 32, 3),
        (0.1, 2, 64, 32, 19),
        (0.0, 2, 64, 32, 31),
        (0.0, 2, 64, 200, 64),
        (0.0, 2, 16, 200, 16),
        (0.0, 1, 64, 1, 0),  # one environment has nothing to share
        (0.0, 1, 64, 2, 1),
        (2.0, 2, 64, 32, 0),  # its child processes keep both processors busy
    ],
)
def test_there_are_as_many_workers_as_keep_the_processors_busy(busy, cpus, most, envs, workers):
    assert Limits(most, cpus).workers(busy, envs) == workers


@pytest.mark.parametrize(("call_s", "workers"), [(0.0, 1), (1e-3, 2), (20e-3, 10), (0.64, 31)])
def test_there_are_no_more_workers_than_their_messages_are_worth(call_s, workers):
    assert Limits(64, 2).workers(0.0, 32, call_s) == workers


# Within any episode

LOST = calls(24 * MS, 2 * MS, 2 * MS, count=4)  # 8 ms each in main
LIGHT, SLOWED = (calls(seconds, 0.1 * MS, 0.1 * MS, count=3) for seconds in (8 * MS, 20 * MS))  # 4.2 ms each


@pytest.mark.parametrize(
    ("why", "kept", "played", "resets", "now", "is_kept"),
    [
        ("a try loses", ALL_MAIN, LOST, 0.0, ALL_MAIN, True),
        ("a try loses, but not what going back takes", ALL_MAIN, LOST, 1.0, SHARED, False),
        ("a try wins", ALL_MAIN, FAST, 0.0, SHARED, False),
        ("one call of a try was disturbed", ALL_MAIN, {**FAST, 1: CallTime(1.0, 64, 10 * MS)}, 0.0, SHARED, False),
        ("what was kept loses, so that main is timed", SHARED, LOST, 0.0, ALL_MAIN, False),
        ("what was kept wins", SHARED, FAST, 0.0, SHARED, True),
        ("light turns lose a little, and heavy ones follow", ALL_MAIN, LIGHT, 0.0, SHARED, False),
        ("light turns lose a tenth of an episode", ALL_MAIN, SLOWED, 0.0, ALL_MAIN, True),
        ("lanes are crowded out", ALL_MAIN, calls(70 * MS, 30 * MS, 60 * MS), 0.0, ALL_MAIN, True),
    ],
)
def test_an_episode_that_lost_as_much_as_it_takes_to_go_back_does_so(why, kept, played, resets, now, is_kept):
    situation = given(T=costs(4 * MS * len(played) + resets, 64 * len(played), reset_s=resets))
    after = break_off(state(now=SHARED, kept=kept, shared=[played]), situation, played)
    assert after.now == now, why
    assert after.is_trying != is_kept, why
    assert (after.record(SHARED).due > 20) == (after.kept == after.now == ALL_MAIN)


# Measurements


def test_of_very_many_calls_the_first_ones_are_kept():
    episode = Episode()
    for number in range(1000):
        episode.count(CallTime(1.0, number))
    assert len(episode.calls) == 300 and episode.calls[-1].turns == 299


def test_an_episode_adds_up_turns_and_resets_by_tag():
    episode = Episode()
    episode.add({"T": spent_on([0.5])}, are_turns=False)
    episode.add({"T": spent_on([0.5, 0.5], Usage(0.1, 0.8), 1.0)}, are_turns=True)
    episode.add({"T": spent_on([0.9, 0.1])}, are_turns=True)
    assert episode.tags["T"] == TagCosts(2.5, 0.5, 0.8, 4, queued_s=pytest.approx(0.1), resets=1)
    assert (episode.tags["T"].per_turn, episode.tags["T"].per_call) == (2.5 / 4, 0.5)
    assert episode.tags["T"].busy == pytest.approx(1 - 0.8 / 2.4)
    assert episode.turns["T"] == Spent(4, 2.0, 0.9, pytest.approx(1.9), 0.8, 0.0, pytest.approx(0.45))
    assert episode.resets["T"] == Spent(1, 0.5, 0.5, 0.5, first_own=0.5)


def test_an_environment_whose_child_processes_use_two_processors_keeps_two_busy():
    episode = Episode()
    episode.add({"T": spent_on([0.5] * 4, Usage(4.0, 0.0), 2.0)}, are_turns=True)
    assert episode.tags["T"].busy == 2.0


@pytest.mark.parametrize(("seen", "usual"), [(Spent(), 0.0), (Spent(1, 2.0, 2.0), 0.0), (Spent(3, 5.0, 3.0), 1.0)])
def test_what_took_longest_says_nothing_of_what_is_usual(seen, usual):
    assert seen.usual_s == usual


@pytest.mark.parametrize(
    ("why", "costs", "text"),
    [
        ("nothing was measured", MeanCosts(), "no turn measured yet"),
        ("no reset was measured", MeanCosts(1e-3), "1.0 ms a turn"),
        ("it computes", MeanCosts(1e-3, 2e-3, 0.05), "1.0 ms a turn, 2.0 ms a reset"),
        ("it waits", MeanCosts(1e-3, 2e-3, 0.5), "1.0 ms a turn, 2.0 ms a reset, 50% of the time waiting"),
    ],
)
def test_costs_in_words_tell_waiting_from_computing(why, costs, text):
    assert costs.describe() == text, why


def test_a_usual_episode_is_the_median_and_what_the_dearest_reset_took_more_is_building():
    meter = CostMeter()
    for seconds, reset_s in [(9.0, 5.0), (2.0, 1.0), (3.0, 1.0)]:
        meter.note(costs(seconds, reset_s=reset_s))
    meter.note(TagCosts(reset_s=0.5))  # no turn was played
    assert meter.usual() == costs(3.0, reset_s=1.0, build_s=4.0)


def test_plans_are_compared_at_the_places_that_both_know_each_by_its_median():
    one = record(calls(2.0), calls(9.0), calls(2.0, count=7))
    two = record(calls(4.0, count=2), calls(4.0, count=1))
    assert one.against(two) == 0.5 and one.against(Record()) is None
