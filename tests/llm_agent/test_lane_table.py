"""The table of workers: environments in quarantine are one row, and worker 10 comes after worker 9."""

from dataclasses import replace

from ragen.parallel.environments import Environments
from ragen.parallel.stats import LaneStats, Stats, alike_together, gathered


def test_quarantine_is_one_row():
    lanes = [
        LaneStats("main", 1, ("walk",), 2, 5, 1.0, 0),
        LaneStats("quarantine of env 3", None, (), 0, 1, 0.5, 1),
        LaneStats("quarantine of env 10", 7, ("walk",), 1, 2, 0.25, 2),
    ]
    assert gathered(lanes) == [lanes[0], LaneStats("quarantine, 2 in turn", None, ("walk",), 1, 3, 0.75, 3)]
    assert gathered(lanes[:2]) == lanes[:2]


def test_many_workers_that_are_alike_are_one_row_with_their_sums():
    main = LaneStats("main", 1, ("walk",), 2, 5, 1.0, 0)
    workers = [LaneStats(f"worker {number}", number, ("walk",), 2, 6, 0.5, 0) for number in range(20)]
    other = LaneStats("worker 20", 7, ("run",), 1, 2, 0.25, 0)
    together = LaneStats("workers 0 to 19", None, ("walk",), 40, 120, 10.0, 0)
    assert alike_together([main, *workers, other]) == [main, together, other]
    assert alike_together([main, *workers[:8]]) == [main, *workers[:8]]
    replaced = [replace(worker, restarts=int(worker.pid == 3)) for worker in workers]
    assert alike_together(replaced) == replaced


def test_lanes_are_in_the_order_of_their_numbers():
    stats, names = Stats(Environments()), [f"worker {number}" for number in range(12)]
    for name in reversed(names):
        stats.count_restart(type("Lane", (), {"name": name})())
    assert [lane.lane for lane in stats.lanes()] == ["main", *names]
