"""What ``ragen cluster`` says of nodes that are not fit; real ones are asked in ``tests/nodes``."""

from dataclasses import replace

import pytest

from ragen.cli import cluster
from ragen.cli.cluster import NodeReport
from ragen.errors import LaneStartError
from ragen.parallel.kinds import ray_cluster
from ragen.parallel.kinds.ray import Node

FIT = NodeReport(Node("a" * 56, "box-1/aaaaaa", "10.0.0.1"), seats=4, round_trip_s=0.0021, skew_s=-0.004)
UNFIT = {
    "has lost its agent": replace(FIT, why="has lost its agent", round_trip_s=None, skew_s=None),
    "has ray 2.61.0 (here 2.60.0); install": replace(FIT, differences=["ray 2.61.0 (here 2.60.0)"]),
    "tag Mine: No module named 'mine'": replace(FIT, missing={"Mine": "No module named 'mine'"}),
    "has no room for a worker now": replace(FIT, seats=0),
}


@pytest.fixture
def ask(monkeypatch, capsys):
    """Runs the command on a cluster of these nodes; its exit code and what it printed."""

    class Cluster:
        def __init__(self, *_):
            self.closed = False

        def why_none(self):
            return "there is none."

        def close(self):
            self.closed = True

    monkeypatch.setattr(ray_cluster, "RayCluster", Cluster)

    def run(*reports):
        monkeypatch.setattr(cluster, "inquire", lambda *_: list(reports))
        return cluster.main([]), capsys.readouterr()

    return run


@pytest.mark.parametrize("says", UNFIT)
def test_a_node_that_is_not_fit_is_the_exit_code_and_is_told_of(ask, says):
    code, told = ask(FIT, UNFIT[says])
    assert code == cluster.UNSOUND
    assert f"node box-1/aaaaaa: {says}" in told.out and "1 of 2 nodes can play SimpleSokoban." in told.out


def test_nodes_that_are_fit_are_told_in_a_table_alone(ask, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    code, told = ask(FIT, replace(FIT, skew_s=2.0))
    assert code == cluster.SOUND
    assert told.out.count("2.1 ms") == 2 and "-0.00 s" in told.out
    *_, last = told.out.splitlines()
    assert last.startswith("node box-1/aaaaaa: its clock is 2.0 s ahead")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "can run code on it" in ask(FIT)[1].out


@pytest.mark.parametrize("columns", ["60", "160", None])
def test_the_nodes_fit_the_terminal_and_leave_no_spaces_at_the_ends_of_lines(ask, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns or "")
    if columns is None:
        monkeypatch.delenv("COLUMNS")
    _, told = ask(FIT, UNFIT["has no room for a worker now"])
    table = told.out.split("1 of 2 nodes")[0].splitlines()
    assert table == [line.rstrip() for line in table]
    assert max(map(len, table)) <= int(columns or 160)
    heads = [line for line in table if line.startswith("node ")]
    assert len(heads) == (2 if columns == "60" else 1)
    assert " ".join(" ".join(heads).split()).count("workers now") == 1
    assert sum(line.startswith("box-1/aaaaaa ") for line in table) == 2 * len(heads)


def test_what_several_nodes_have_in_common_is_said_once(ask):
    lacks = UNFIT["tag Mine: No module named 'mine'"]
    _, told = ask(*(replace(lacks, node=Node(each * 56, f"box-{each}", "10.0.0.1")) for each in "123"), FIT)
    assert told.out.count("No module named 'mine'") == 1
    assert "nodes box-1, box-2, box-3: tag Mine: No module named 'mine'" in told.out


def test_a_cluster_that_is_not_there_is_an_error(ask, monkeypatch):
    code, told = ask()
    assert code == cluster.UNSOUND and told.err == "error: there is none.\n"

    def nowhere(*_):
        raise LaneStartError("the cluster at 'box-9:6379' cannot be used")

    monkeypatch.setattr(ray_cluster, "RayCluster", nowhere)
    code, told = ask(FIT)
    assert code == cluster.UNSOUND and told.err == "error: the cluster at 'box-9:6379' cannot be used\n"
