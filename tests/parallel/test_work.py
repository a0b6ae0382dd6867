"""The line at the end of a rollout: facts about the work of environments."""

import pytest

from envlanes import EnvEngine, EnvSpec, Settings, Work
from envlanes.episode.clock import Spent
from envlanes.episode.turn import Turn
from envlanes.stats import Costs, LaneStats, duration, gathered
from support.faulty_envs import Walk

ENVS = 4


def test_works_add_up_and_their_line_names_each_figure():
    costs = Costs(Spent.of([0.035] * 300), Spent.of([0.002] * 32))
    work = Work(6.5, 11.3, 2, 0.4, {"Code": costs}, {"Code": "workers"})
    cheap = Work(0.01, 0.005, 0, 0.0, {"Cheap": Costs(Spent.of([4e-5] * 9))}, {"Cheap": "main"})
    both = work + cheap + cheap
    assert (both.seconds, both.inside_s, both.workers, both.start_s) == (6.52, pytest.approx(11.31), 2, 0.4)
    assert both.costs["Cheap"].turns.number == 18
    for figure in ("6.5 s", "11.3 s", "2 workers", "400 ms", "in workers: Code 35 ms", "in main: Cheap 40 us"):
        assert figure in both.describe()
    assert Work().describe()


@pytest.mark.parametrize(("mode", "workers"), [(True, 2), (False, 0), ("auto", 0)])
def test_an_engine_counts_what_it_plays(mode, workers):
    specs = [EnvSpec.of(Walk, None, env_id=n) for n in range(ENVS)]
    with EnvEngine(specs, Settings(use_lanes=mode, max_workers=2)) as engine:
        for _ in range(2):
            engine.reset(dict.fromkeys(range(ENVS), 1))
            for _ in range(3):
                engine.play({n: Turn(("go",), 1) for n in range(ENVS)})
        work = engine.work()
    assert (work.workers, work.homes) == (workers, {"Walk": "workers" if workers else "main"})
    turns, resets = work.costs["Walk"]
    assert (turns.number, resets.number) == (24, 8)
    assert 0 < work.inside_s == turns.seconds + resets.seconds
    assert (0 < work.start_s < work.seconds) if workers else (0 == work.start_s < work.seconds)


@pytest.mark.parametrize(("seconds", "text"), [(2e-6, "2.0 us"), (0.0123, "12 ms"), (1.5, "1.5 s"), (120.0, "120 s")])
def test_durations_have_two_or_three_digits(seconds, text):
    assert duration(seconds) == text


def row(name, types=("A",), restarts=0):
    return LaneStats(name, 1, types, 2, 3, 0.5, restarts)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], []),
        ([f"worker {n}" for n in range(8)], [f"worker {n}" for n in range(8)]),
        ([f"worker {n}" for n in range(12)], ["workers 0 to 11"]),
        (["quarantine of env 1"], ["quarantine of env 1"]),
        (["quarantine of env 1", "quarantine of env 2"], ["quarantine, 2 in turn"]),
    ],
)
def test_a_table_has_one_row_for_many_workers_alike(names, shown):
    rows = gathered([row("main"), *map(row, names)])
    assert [each.lane for each in rows] == ["main", *shown]
    assert sum(each.envs for each in rows) == 2 * sum(each.turns for each in rows) / 3 == 2 * (1 + len(names))


def test_a_worker_that_was_replaced_or_hosts_other_types_has_a_row_of_its_own():
    workers = [row(f"worker {n}", ("A", "B") if n == 20 else ("A",), int(n == 9)) for n in range(21)]
    assert [each.lane for each in gathered(workers)] == ["workers 0 to 8", "worker 9", "workers 10 to 19", "worker 20"]
