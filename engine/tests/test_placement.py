"""The rule of ``auto``, line by line, and which worker an environment lives in."""

import pytest

from envlanes import Engine, Settings
from envlanes import auto as rule
from envlanes.auto import Auto, WorkerLimits, spread
from envlanes.episode.clock import Spent
from envlanes.episode.spec import EnvSpec
from envlanes.ragen.turn import TEXT
from envlanes.stats import Costs

US, MS, ENVS = 1e-6, 1e-3, 16


def specs(envs=ENVS, group=4, tag="Tag", first=0, hint=None):
    kind = type(tag, (), {"cost_hint": hint})
    return [EnvSpec(first + i, (first + i) // group, tag, tag.lower(), TEXT, kind, None) for i in range(envs)]


def spent(each, number=64, busy=1.0):
    return Spent.of([each] * number, number * each * busy) if each else Spent()


def costs(turn=0.0, reset=0.0, busy=1.0):
    return Costs(spent(turn, busy=busy), spent(reset, busy=busy))


def made(envs=ENVS, limits=None, hint=None):
    auto = Auto(limits or WorkerLimits(None, 2))
    auto.at_reset(specs(envs, hint=hint), {})
    return auto


def after(auto, envs=ENVS, hint=None, **costs):
    """The number of workers after an episode of these costs."""
    auto.at_reset(specs(envs, hint=hint), costs)
    return auto.most


@pytest.mark.parametrize(("hint", "workers", "later"), [("heavy", 2, 2), ("io", 16, 16), ("cheap", 0, 0), (None, 0, 2)])
def test_a_hint_decides_beforehand_and_afterwards(hint, workers, later):
    auto = made(hint=hint)
    assert auto.most == workers
    assert after(auto, hint=hint, Tag=costs(5 * MS)) == later
    assert after(auto, hint=hint, Tag=costs(5 * US)) == workers
    auto.consider({"Tag": costs(5 * MS)}, range(ENVS))
    assert auto.is_due == (hint is None)


@pytest.mark.parametrize(
    ("why", "episodes", "is_out"),
    [
        ("turns are cheap", [costs(10 * US)], False),
        ("turns take long", [costs(1.1 * MS)], True),
        ("resets take long", [costs(10 * US, 1.1 * MS)], True),
        ("a turn is just below the threshold", [costs(0.9 * MS)], False),
        ("they take a little less", [costs(2 * MS), costs(0.4 * MS)], True),
        ("they take a little less, episode after episode", [costs(2 * MS), costs(0.4 * MS), costs(0.4 * MS)], True),
        ("they take less than .3 of the threshold", [costs(2 * MS), costs(0.2 * MS)], False),
        ("they take little, and then as long as before", [costs(2 * MS), costs(0.2 * MS), costs(0.4 * MS)], False),
        ("they come to take long", [costs(10 * US), costs(2 * MS)], True),
        ("only resets were played", [costs(2 * MS), costs(reset=10 * US)], True),
        ("they compute on both processors", [costs(2 * MS, busy=2.0)], False),
    ],
)
def test_at_a_reset_the_last_episode_decides(why, episodes, is_out):
    auto = made()
    for episode in episodes:
        after(auto, Tag=episode)
    assert ("Tag" in auto.workers) == is_out, why


@pytest.mark.parametrize(("before", "later", "workers"), [(0.9, 0.1, 2), (0.1, 0.9, 16)])
def test_a_number_of_workers_that_was_measured_stays(before, later, workers):
    auto = made()
    for busy in (before, later):
        assert after(auto, Tag=costs(2 * MS, busy=busy)) == workers


@pytest.mark.parametrize(
    ("busy", "cpus", "given", "envs", "workers"),
    [
        (1.0, 2, None, 32, 2),
        (1.0, 1, None, 32, 0),
        (1.0, 8, None, 32, 8),
        (1.0, 8, None, 4, 4),
        (0.8, 2, None, 32, 2),
        (1.3, 2, None, 32, 2),
        (0.1, 2, None, 32, 20),
        (0.0, 2, None, 32, 32),
        (0.0, 1, None, 32, 32),
        (0.0, 2, None, 200, 64),
        (0.0, 2, 16, 200, 16),
        (1.0, 2, 16, 200, 16),
        (1.0, 2, 1, 200, 0),
        (0.0, 2, None, 1, 0),
        (2.0, 2, None, 32, 0),
        (2.0, 8, None, 32, 4),
    ],
)
def test_there_are_as_many_workers_as_keep_the_processors_busy(monkeypatch, busy, cpus, given, envs, workers):
    monkeypatch.setattr(rule, "_fit_in_memory", lambda: 1000)
    assert WorkerLimits(given, cpus).workers(busy, envs) == workers


@pytest.mark.parametrize(("fit", "workers"), [(0, 2), (10, 10), (1000, 64)])
def test_workers_for_what_waits_fit_in_memory(monkeypatch, fit, workers):
    monkeypatch.setattr(rule, "_fit_in_memory", lambda: fit)
    assert WorkerLimits(None, 2).workers(0.0, 200) == workers


@pytest.mark.parametrize(
    ("why", "cost", "is_due"),
    [
        ("turns are cheap", costs(10 * US), False),
        ("turns take long", costs(2 * MS), True),
        ("resets take long, and nothing was played", costs(reset=2 * MS), True),
        ("nothing was measured", costs(), False),
        ("one was measured, which may have imported something", Costs(Spent.of([1.0])), False),
    ],
)
def test_before_a_call_the_episode_so_far_decides(why, cost, is_due):
    auto = made()
    for each in (cost, costs(1 * US)):  # nothing returns before the next reset
        auto.consider({"Tag": each}, range(ENVS))
        assert auto.is_due == is_due, why


@pytest.mark.parametrize(
    ("why", "each", "is_reset", "reset", "left", "ready", "moves"),
    [
        ("workers are up", 2 * MS, False, 10 * US, 14, 2, True),
        ("workers are not up", 2 * MS, False, 10 * US, 14, 1, False),
        ("main would take longer than their start", 30 * MS, False, 10 * US, 14, 0, True),
        ("resets take longer than four turns", 2 * MS, False, 9 * MS, 14, 2, False),
        ("resets take less than four turns", 2 * MS, False, 7 * MS, 14, 2, True),
        ("it is the reset", 20 * MS, True, 0.0, 14, 2, True),
        ("it is the reset, and workers are not up", 20 * MS, True, 0.0, 14, 1, False),
        ("turns are cheap", 10 * US, False, 10 * US, 14, 2, False),
    ],
)
def test_what_is_left_of_a_call_moves_if_that_pays(why, each, is_reset, reset, left, ready, moves):
    auto, measured = made(), {"Tag": Costs(spent(each, 2))}
    auto.consider(measured, range(ENVS))
    rest = range(ENVS - left, ENVS)
    found = auto.due(rest, measured, {} if is_reset else {"Tag": costs(reset=reset)}, ready)
    assert found == (set(rest) if moves else set()), why


@pytest.mark.parametrize(("envs", "is_due"), [(4, False), (8, True)])
def test_within_a_call_only_environments_that_it_plays_count(envs, is_due):
    auto = made()
    auto.consider({"Tag": Costs(spent(2 * MS, 2))}, range(envs))
    assert auto.is_due == is_due


@pytest.mark.parametrize(
    ("members", "workers", "homes"),
    [
        (specs(16, group=4), 8, [worker for worker in range(8) for _ in range(2)]),
        (specs(7, group=7), 3, [0, 0, 0, 1, 1, 2, 2]),
        (specs(8, group=2), 2, [0, 0, 0, 0, 1, 1, 1, 1]),
        (specs(64, group=8), 4, [worker for worker in range(4) for _ in range(16)]),
    ],
)
def test_members_of_a_group_stay_together_as_far_as_that_is_even(members, workers, homes):
    assert list(spread(members, workers).values()) == homes


class Tame:
    """Is never built."""


class Wild(Tame):
    pass


@pytest.mark.parametrize(("mode", "away"), [(True, {0, 1, 2, 3}), (False, set()), ("auto", set())])
def test_true_sends_all_but_sequential_types_to_workers_and_false_none(mode, away):
    environments = [
        EnvSpec.of(kind, env_id=4 * place + i, game=TEXT) for place, kind in enumerate((Tame, Wild)) for i in range(4)
    ]
    sequential = (environments[-1].env_type,)
    with Engine(environments, Settings(use_lanes=True, max_workers=2, sequential_env_types=sequential)) as engine:
        engine.use_lanes = mode
        engine.rebalance()
        assert {env_id for env_id in engine.records if engine.home(env_id) != "main"} == away
