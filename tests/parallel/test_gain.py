"""The gain: the line at the end of a rollout, from what was measured."""

import io
import logging
import re
import sys
import threading
import time
from collections import defaultdict
from contextlib import nullcontext

import pytest

from ragen.cli.main import main
from ragen.env import registry
from ragen.parallel import EnvEngine, EnvSpec, Settings
from ragen.parallel.environments import Environments, EnvRecord
from ragen.parallel.episode.clock import Usage, spent_on
from ragen.parallel.episode.turn import Turn
from ragen.parallel.lanes.orders import Play, Reset
from ragen.parallel.stats import CallTime, Gain, Stats, duration, queued_alone
from support.faulty_envs import Clock


class Walk:
    def reset(self, seed=None, mode=None):
        return "0"

    def step(self, action):
        return "1", 1.0, False, {}

    def render(self, mode=None):
        return "1"


def played(mode, env=Walk, **settings):
    specs = [EnvSpec.of(env, None, env_id=n, tag="Walk") for n in range(4)]
    with EnvEngine(specs, Settings(use_lanes=mode, max_workers=2, **settings)) as engine:
        engine.reset(dict.fromkeys(range(4), 1))
        for _ in range(3):
            engine.play({n: Turn(("go",), 1) for n in range(4)})
        return engine.gain()


LINES = [
    (Gain(6.5, 11.3, 40, 0.2, workers=2, mode=True, computed_s=11.0),
     "2 workers: 6.5 s in environments; one after the other at most about 11.3 s: up to 1.7 x faster"),
    (Gain(23.1, 33.4, 40, 0.2, workers=2, mode=True, computed_s=16.0, queued_s=17.3),
     "2 workers: 23.1 s in environments; one after the other at most about 33.4 s (17.3 s of it waiting for a "
     "processor of this busy machine): up to 1.4 x faster"),
    (Gain(6.5, 11.3, 40, 0.2, workers=2, mode=True, computed_s=5.0),
     "2 workers: 6.5 s in environments; one after the other about 11.3 s: 1.7 x faster"),
    (Gain(6.5, 12.3, 40, 0.2, workers=2, mode=True, computed_s=0.3),
     "2 workers: 6.5 s in environments; one after the other about 12.3 s: 1.9 x faster; turns mostly wait, so more "
     "workers would pay: set max_workers, or use_multiprocessing=auto"),
    (Gain(6.5, 12.3, 40, 0.2, workers=8, mode=True, computed_s=0.3),
     "8 workers: 6.5 s in environments; one after the other about 12.3 s: 1.9 x faster"),
    (Gain(6.5, 12.3, 40, 0.2, workers=2, mode="auto", computed_s=0.3),
     "2 workers: 6.5 s in environments; one after the other about 12.3 s: 1.9 x faster"),
    (Gain(6.5, 11.3, 40, 0.2, workers=1, main_took_part=True),
     "1 worker and the main process: 6.5 s in environments; one after the other about 11.3 s: 1.7 x faster"),
    (Gain(2.0, 0.5, 40, 1e-3, workers=2, mode=True),
     "2 workers: 2.0 s in environments; one after the other about 500 ms: 4.0 x slower, the start "
     "of workers included; use_multiprocessing=auto measures what pays off"),
    (Gain(2.0, 0.5, 40, 1e-3, workers=2, mode="auto"),
     "2 workers: 2.0 s in environments; one after the other about 500 ms: trying workers cost about 1.5 s"),
    (Gain(60.0, 0.02, 40, 1e-3, workers=2, mode=True, failures=8),
     "2 workers: 60.0 s in environments, with 8 failed attempts: whether workers paid is not known"),
    (Gain(2.0, 5.0, 40, 1e-3, workers=2, failures=1),
     "2 workers: 2.0 s in environments; one after the other about 5.0 s: 2.5 x faster"),
    (Gain(60.0, 0.0, 0, workers=2, failures=1), "no turn was played to its end: 1 failed attempt"),
    (Gain(1.0, 1.01, 40, 1e-3, workers=2),
     "2 workers: 1.0 s in environments; one after the other about 1.0 s: no faster"),
    (Gain(0.1, 0.1, 40, 13e-6), "kept in the main process: a turn costs 13 us on average, workers would cost more"),
    (Gain(0.3, 0.3, 40, 7.5e-3),
     "kept in the main process: 40 turns of 7.5 ms on average; once that was known, moving them "
     "would have cost more than it saved"),
    (Gain(19.3, 19.3, 384, 0.05),
     "kept in the main process: 384 turns of 50 ms on average; auto has not seen in time whether workers pay; if "
     "several play at once, use_multiprocessing=true, or a cost_hint in the class, uses them from the start"),
    (Gain(5.4, 5.4, 84, 57e-6, resets=28, reset_s=0.19),
     "kept in the main process: 28 resets of 190 ms, 84 turns of 57 us on average; auto has not seen in time whether "
     "workers pay; if several play at once, use_multiprocessing=true, or a cost_hint in the class, uses them from the "
     "start"),
    (Gain(5.4, 5.4, 84, 57e-6, resets=28, reset_s=0.19, mode=False),
     "kept in the main process, since use_multiprocessing is false: 5.4 s in environments, 57 us a turn, 190 ms a "
     "reset"),
    (Gain(0.3, 0.3, 1, 0.3),
     "kept in the main process: 1 turn of 300 ms; once that was known, moving them would have cost more than it saved"),
    (Gain(168.0, 0.1, 40, 24e-6, failures=28),
     "kept in the main process, with 28 failed attempts: 168 s in environments, 24 us a turn; whether workers would "
     "have paid is not known"),
    (Gain(0.1, 0.1, 40, 13e-6, failures=1),
     "kept in the main process: a turn costs 13 us on average, workers would cost more"),
    (Gain(0.1, 0.1, 40, 13e-6, mode=False),
     "kept in the main process, since use_multiprocessing is false: 100 ms in environments, 13 us a turn"),
    (Gain(0.1, 0.1, 40, 13e-6, held="workers do not start"),
     "kept in the main process, since workers do not start: 100 ms in environments, 13 us a turn"),
    (Gain(6.5, 11.3, 40, 0.2, workers=2, mode=True, queued_s=5.0, computed_s=2.0),
     "2 workers: 6.5 s in environments; one after the other about 11.3 s (5.0 s of it waiting for a processor of this "
     "busy machine): 1.7 x faster"),
    (Gain(4.6, 4.6, 211, 5.7e-3, mode=False, queued_s=3.4),
     "kept in the main process, since use_multiprocessing is false: 4.6 s in environments (3.4 s of it waiting for a "
     "processor of this busy machine), 5.7 ms a turn"),
    (Gain(), "no turn was played"),
]  # fmt: skip


def test_what_a_tag_is_said_to_cost_is_what_the_last_line_says():
    specs = [EnvSpec.of(Walk, None, env_id=n, tag="Walk") for n in range(4)]
    with EnvEngine(specs, Settings(use_lanes=True, max_workers=2)) as engine:
        for _ in range(2):
            engine.reset(dict.fromkeys(range(4), 1))
            engine.play({n: Turn(("go",), 1) for n in range(4)})
        costs, gain = engine.stats_book.costs()["Walk"], engine.gain()
    assert (costs.turn_s, costs.reset_s) == (gain.turn_s, gain.reset_s)
    assert 0 < costs.turn_s < 1 and 0 < costs.reset_s < 1


@pytest.mark.parametrize(("gain", "line"), LINES)
def test_the_line_says_who_played_what_it_took_and_whether_that_paid(gain, line):
    assert gain.describe() == line


def test_the_gains_of_training_and_validation_are_one():
    both = Gain(1.0, 2.0, 10, 0.1, workers=2) + Gain(3.0, 4.0, 30, 0.2, main_took_part=True)
    assert both == Gain(4.0, 6.0, 40, pytest.approx(0.175), 2, True)


@pytest.mark.parametrize(
    ("seconds", "words"), [(2e-6, "2.0 us"), (13e-6, "13 us"), (0.9996, "1.0 s"), (0.5, "500 ms"), (120.0, "120 s")]
)
def test_a_duration_has_the_unit_that_fits(seconds, words):
    assert duration(seconds) == words


def test_in_the_main_process_nothing_is_gained():
    gain = played("auto")
    assert (gain.workers, gain.main_took_part, gain.turns, gain.held) == (0, True, 12, "")
    assert 0 < gain.turn_s <= gain.sequential_s <= gain.seconds
    assert gain.describe().startswith("kept in the main process: a turn costs")


@pytest.mark.processes
class NapsInItsLastTurn(Walk):
    turns = 0

    def step(self, action):
        self.turns += 1
        time.sleep(0.2 * (self.turns == 3))
        return super().step(action)


def test_a_rare_turn_that_waits_is_not_taken_for_computing():
    gain = played(True, NapsInItsLastTurn)
    assert gain.computed_s < 0.4 < gain.sequential_s and "at most" not in gain.describe()


def test_workers_that_played_are_counted():
    gain = played(True)
    assert (gain.workers, gain.main_took_part, gain.turns) == (2, False, 12)
    assert 0 < gain.sequential_s < gain.seconds  # these turns cost nothing beside a message


def test_an_environment_that_fails_is_counted():
    gain = played(False, env=Moody)
    assert gain.failures == 8 and gain.describe() == "no turn was played to its end: 8 failed attempts"


@pytest.mark.processes
def test_what_the_user_or_a_warning_keeps_in_the_main_process_is_said(monkeypatch):
    env_type = f"{__name__}:Walk"
    assert played(True, sequential_env_types=(env_type,)).held == "sequential_env_types lists their types"
    monkeypatch.setitem(registry._in_main, env_type, "Walk keeps state in its class (walk.py:3)")
    assert played(True, sequential_env_types=(env_type,)).held == "Walk keeps state in its class (walk.py:3)"


class Locked(Walk):
    guard = threading.Lock()  # part of the class, which is not importable and so sent by value

    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


Locked.__module__ = "nowhere"


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["auto", True])
def test_a_failed_move_to_workers_is_given_as_the_reason_and_not_the_cost_of_a_turn(mode):
    gain = played(mode, env=Locked)
    assert gain.workers == 0
    reason = r"kept in the main process, since moving Walk to workers failed \(.*: cannot pickle .*lock.*\): "
    assert re.match(reason, gain.describe()), gain.describe()


def test_calls_that_overlap_in_two_threads_count_once(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("ragen.parallel.stats.perf_counter", lambda: clock[0])
    stats = Stats(Environments())
    with stats.in_call():
        clock[0] = 1.0
        with stats.in_call():
            clock[0] = 2.0
        clock[0] = 4.0
    clock[0] = 9.0
    assert stats.gain(True).seconds == 4.0


@pytest.mark.parametrize(
    ("computed_s", "queued_s", "at_once", "cpus", "alone_s"),
    [
        (4.0, 0.0, 2.0, 2, 0.0),  # two workers on two idle processors
        (4.0, 4.0, 4.0, 2, 0.0),  # four workers: they only wait for each other
        (4.0, 2.0, 3.0, 2, 0.0),  # three
        (4.0, 8.0, 2.0, 2, 6.0),  # two workers beside four other programs
        (4.0, 12.0, 4.0, 2, 6.0),  # four beside four others
        (4.0, 6.0, 1.0, 2, 6.0),  # one after the other
        (0.0, 0.0, 0.0, 2, 0.0),  # they only waited for something else
    ],
)  # fmt: skip
def test_waiting_for_a_processor_counts_as_far_as_other_programs_are_the_cause(
    computed_s, queued_s, at_once, cpus, alone_s
):
    assert queued_alone(computed_s, queued_s, at_once, cpus) == pytest.approx(alone_s)


@pytest.mark.parametrize(
    ("homes", "computed", "waited", "queued", "passed", "cpus", "sequential_s"),
    [
        (["0", "1"], 1.5, 0.0, 0.5, 2.0, 6, 3.5),  # beside other programs
        (["0", "1"], 1.5, 0.0, 0.5, 1.0, 6, 3.0),  # beside each other alone
        (["0", "1", "2", "3"], 1.0, 0.0, 3.0, 4.0, 2, 8.0),  # not 10: two processors do no more in the time
        ([str(name) for name in range(48)], 0.1, 1.0, 0.8, 2.0, 2, 48 * 1.1),  # all wake up at once
        ([None, "0"], 1.0, 0.0, 1.5, 5.0, 2, 4.5),  # in turns: what main waited is due to others, half of the worker's
    ],
)
def test_what_turns_waited_for_a_processor_is_taken_apart(
    monkeypatch, homes, computed, waited, queued, passed, cpus, sequential_s
):
    clock = [0.0]
    monkeypatch.setattr("ragen.parallel.stats.perf_counter", lambda: clock[0])
    monkeypatch.setattr("ragen.parallel.stats.usable_cpus", lambda: cpus)
    environments = Environments()
    environments.records[0] = EnvRecord(EnvSpec.of(Walk, tag="Walk"), None)
    stats = Stats(environments)
    with stats.in_call():
        clock[0] = passed
    each = computed + waited + queued
    for name in homes:
        lane = name and type("Lane", (), {"name": f"worker {name}"})()
        spent = spent_on([each], Usage(computed=computed, waited=waited), each)
        stats.count(lane, Play([(0, None)]), {"Walk": spent}, each)
    gain = stats.gain(True)
    own_s = len(homes) * (computed + waited)
    assert (gain.sequential_s, gain.queued_s) == pytest.approx((sequential_s, sequential_s - own_s))


@pytest.mark.parametrize(
    ("local_s", "lanes", "overlap", "overhead_s"),
    [(0.25, 0, False, 0.75), (0.25, 1, False, 0.0), (0.25, 0, True, 0.0)],
)
def test_the_overhead_of_calls_without_workers_would_be_there_without_them_too(local_s, lanes, overlap, overhead_s):
    stats = Stats(Environments())
    with stats.in_call(), stats.in_call() if overlap else nullcontext():
        stats.count_call(CallTime(1.0, 4, local_s, lanes=lanes), are_turns=True)
    assert stats.gain("auto").sequential_s == pytest.approx(overhead_s)


@pytest.mark.parametrize(("others", "sequential_s"), [(3, 1.0 + 2 * 4 * 0.1), (0, 2.2)])
def test_what_each_process_loads_at_first_counts_once(others, sequential_s):
    environments = Environments()
    environments.records[0] = EnvRecord(EnvSpec.of(Walk, tag="Walk"), None)
    stats = Stats(environments)
    for name in ("worker 0", "worker 1"):
        lane = type("Lane", (), {"name": name})()
        stats.count(lane, Play([(0, None)]), {"Walk": spent_on([1.1, *[0.1] * others])}, 1.0)
        stats.count(lane, Play([(0, None)]), {}, 0.0)
    assert stats.gain(True).sequential_s == pytest.approx(sequential_s)


def test_a_turn_that_is_the_first_in_a_worker_and_dear_like_its_next_ones_has_loaded_nothing():
    environments = Environments()
    environments.records[0] = EnvRecord(EnvSpec.of(Walk, tag="Walk"), None)
    stats = Stats(environments)
    stats.count(None, Play([(0, None)]), {"Walk": spent_on([0.001] * 100)}, 0.1)
    for name in ("worker 0", "worker 1"):
        lane = type("Lane", (), {"name": name})()
        stats.count(lane, Play([(0, None)]), {"Walk": spent_on([0.5, 0.5])}, 1.0)
    assert stats.gain("auto").sequential_s == pytest.approx(2.1)


@pytest.mark.parametrize(("groups", "sequential_s"), [((0, 0), 0.5), ((0, 1), 1.0)])
def test_a_reset_that_members_of_a_group_share_counts_once_whatever_worker_did_it(groups, sequential_s):
    environments = Environments()
    environments.records[0] = EnvRecord(EnvSpec.of(Walk, tag="Walk"), None)
    stats, shared = Stats(environments), defaultdict(list)
    for number, group in enumerate(groups):
        lane = type("Lane", (), {"name": f"worker {number}"})()
        stats.count(lane, Reset([]), {"Walk": spent_on([0.5, 0.0])}, 0.5)
        shared["Walk", group, 1].append(0.5)
    stats.count_shared(shared)
    assert stats.gain(True).sequential_s == pytest.approx(sequential_s)


class ResetsSlowly(Walk):
    uses_global_rng = False

    def reset(self, seed=None, mode=None):
        time.sleep(0.01)
        return "0"

    def save(self):
        return 1

    def load(self, state):
        pass


@pytest.mark.parametrize(("workers", "resets"), [(2, [1, 1]), (4, [2, 2]), (8, [4, 4])])
def test_how_often_groups_were_reset_is_known(monkeypatch, workers, resets):
    counted = []
    monkeypatch.setattr(Stats, "count_shared", lambda _, shared: counted.append(shared))
    specs = [EnvSpec.of(ResetsSlowly, None, n, group_id=n // 4, tag="T") for n in range(8)]
    with EnvEngine(specs, Settings(use_lanes=True, max_workers=workers)) as engine:
        engine.reset(dict.fromkeys(range(8), 7))
        engine.reset(dict.fromkeys(range(8)))  # without a seed nothing is shared
    first, second = counted
    assert {key: len(seconds) for key, seconds in first.items()} == {("T", n, 7): resets[n] for n in range(2)}
    assert all(each >= 0.01 for seconds in first.values() for each in seconds) and not second


@pytest.mark.parametrize(
    ("times", "turn_s"),
    [([3.0, 2e-5, 2e-5], 2e-5), ([2e-5, 2e-5, 6e-2], 3.001e-2), ([2e-5], 2e-5)],
)
def test_a_turn_costs_the_mean_without_the_first_which_may_load_something(times, turn_s):
    environments = Environments()
    environments.records[0] = EnvRecord(EnvSpec.of(Walk, tag="Walk"), None)
    stats = Stats(environments)
    stats.count(None, Play([(0, None)]), {"Walk": spent_on(times)}, sum(times))
    assert stats.gain("auto").turn_s == pytest.approx(turn_s)


class Moody(Clock):
    """Raises at its first turn, and tells the time: what is rebuilt then is not what it was."""

    def step(self, action):
        raise ValueError("not today")


ROLLOUT = f"""
defaults: [base, _self_]
custom_envs:
  Moody: &env {{env_type: "{__name__}:Moody", max_actions_per_traj: 1, env_instruction: Go.}}
  Walk: {{<<: *env, env_type: "support.faulty_envs:Walk"}}
agent_proxy: {{max_turn: 1}}
es_manager:
  use_multiprocessing: false
  val: {{env_groups: 5, group_size: 1, env_configs: {{tags: [Walk, Moody], n_groups: [1, 4]}}}}
"""


def test_the_gain_is_the_last_line_of_a_rollout_after_what_failed_and_what_is_not_deterministic(tmp_path, monkeypatch):
    (tmp_path / "moody.yaml").write_text(ROLLOUT)
    monkeypatch.chdir(tmp_path)  # where crash reports go
    shown = io.StringIO()  # all that a terminal would show
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    handler, log = logging.StreamHandler(shown), logging.getLogger("ragen")
    log.addHandler(handler)
    try:
        assert main(["rollout", "--config-name", str(tmp_path / "moody"), f"output_dir={tmp_path}"]) == 3
    finally:
        log.removeHandler(handler)
    *before, unsteady, gain = shown.getvalue().splitlines()
    assert any(re.match(r"\d more environments? of tag 'Moody'", line) for line in before)
    assert unsteady.startswith("Moody is not deterministic") and f"ragen check {__name__}:Moody" in unsteady
    assert gain.startswith("kept in the main process, since use_multiprocessing is false")
