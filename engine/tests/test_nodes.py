"""Workers on nodes that come, go, stop and are killed: the rollouts stay equal. Ray itself is stood in for.

What an environment does to its worker is in ``test_faults``, which runs over these nodes too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from envlanes.errors import ConfigError, LaneStartError
from envlanes.kinds import ray as ray_kind
from envlanes.kinds import ray_cluster
from envlanes.kinds.ray import Node, NodeAgent
from envlanes.kinds.ray_options import RayOptions
from support.episodes import EnvStateManager, freeze, play, sequential, walks
from support.leftovers import is_over, titled, until
from support.simulated_nodes import SimulatedCluster

pytestmark = pytest.mark.cluster

TURNS = 6
THREE = ("one", "two", "three")


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    """Three nodes of two places each, and no Ray."""
    monkeypatch.setattr(ray_cluster, "RayCluster", SimulatedCluster)
    monkeypatch.setattr(SimulatedCluster, "names", THREE)


@pytest.fixture(scope="module")
def honest():
    """The results of two episodes in the main process."""
    return sequential(walks(), TURNS, episodes=2)


@contextlib.contextmanager
def on_nodes(**es_manager):
    with EnvStateManager(walks(**es_manager)) as manager:
        cluster = SimulatedCluster.last
        assert cluster is not None
        assert until(lambda: all(is_up(manager, name) for name in THREE))
        yield manager, cluster


def used(manager):
    """The nodes that environments live on."""
    assert manager.lane_stats()[0].envs == 0
    return {lane.node for lane in manager.lane_stats() if lane.envs}


def is_up(manager, name):
    kind: Any = manager._engine._placement.pool.kind
    return any(agent.is_up for agent in kind._agents.values() if agent.node.name == name)


def restarts(manager):
    return sum(lane.restarts for lane in manager.lane_stats())


LOSSES: dict[str, Callable[[SimulatedCluster], None]] = {
    "its agent is killed": lambda cluster: cluster.kill_agent("two"),
    "it is removed": lambda cluster: cluster.remove("two"),
    "its supervisor is killed": lambda _: os.kill(titled("envlanes supervisor")[0], signal.SIGKILL),
}


@pytest.mark.cold
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("at", [0, 2])
def test_a_node_is_lost_and_the_rollout_is_equal(loss, at, honest):
    with on_nodes() as (manager, cluster):

        def lose(turn):
            if turn == at:
                workers = [lane.pid for lane in manager.lane_stats()[1:] if lane.pid]
                LOSSES[loss](cluster)
                assert until(lambda: any(map(is_over, workers)))

        assert freeze(play(manager, TURNS, lose)) == honest[0]
        assert freeze(play(manager, TURNS)) == honest[1]
        assert restarts(manager) >= 1
        if loss == "it is removed":
            assert used(manager) == {"one", "three"}


def test_without_any_node_left_the_main_process_goes_on(honest):
    with on_nodes(max_restarts=1) as (manager, cluster):

        def lose_all(turn):
            if turn == 2:
                for name in THREE:
                    cluster.remove(name)

        assert freeze(play(manager, TURNS, lose_all)) == honest[0]
        assert manager.lane_stats()[0].envs == 8


def test_a_node_that_stops_is_given_up_when_its_environments_are_overdue(honest, caplog, monkeypatch):
    monkeypatch.setattr(ray_kind, "ANSWER_TIMEOUT", 0.5)
    with on_nodes(step_timeout=0.5) as (manager, cluster):

        def stop(turn):
            if turn == 2:
                cluster.hold("two")
                cluster.there.remove("two")

        assert freeze(play(manager, TURNS, stop)) == honest[0]
        assert used(manager) == {"one", "three"}
        assert "node two does not answer within 0.5 s" in caplog.text
        assert freeze(play(manager, TURNS)) == honest[1]


def test_a_node_that_ray_declares_dead_is_given_up_before_any_deadline(honest, caplog):
    with on_nodes(step_timeout=1000) as (manager, cluster):
        doctor = threading.Timer(0.5, cluster.remove, ["two"])

        def stop(turn):
            if turn == 2:
                cluster.hold("two")
                cluster.dead.add("two")
                doctor.start()

        assert freeze(play(manager, TURNS, stop)) == honest[0]
        doctor.join()
        assert used(manager) == {"one", "three"}
        assert "node two is dead" in caplog.text


def test_a_node_that_answers_late_keeps_its_workers(honest):
    """A request takes as long to get there as its environments may take: their time begins when it has come.

    It gets there when the main process asks where the worker is, which it does when that may be overdue.
    """
    with on_nodes(step_timeout=4.0) as (manager, cluster):
        play(manager, 1)  # what a class needs the first time takes no time of the turn that counts
        assert freeze(play(manager, TURNS, lambda turn: turn == 1 and cluster.hold("two", "positions"))) == honest[1]
        assert cluster.agents["two"].passes.is_set()
        assert restarts(manager) == 0 and sorted(cluster.placed) == sorted(THREE)


def test_a_node_with_other_versions_is_refused_by_name():
    with pytest.raises(LaneStartError, match=r"it has numpy [\d.]+ \(here 0\.1\); install the same version there"):
        NodeAgent("two", "forkserver", [], {"numpy": "0.1"})


# Options


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"adress": "auto"}, "ray.adress"),
        ({"address": "ray://head:10001"}, "ray.address"),
        ({"num_cpus": -1}, "ray.num_cpus"),
        ({"num_cpus": True}, "ray.num_cpus"),
        ({"resources": {"gpu box": "two"}}, "ray.resources"),
        *(({"resources": {name: 1}}, f"ray.resources.{name}") for name in ("CPU", "GPU")),
        ({"resources": 3}, "ray.resources"),
        ({"nodes": "workers"}, "ray.nodes"),
        ({"nodes": []}, "ray.nodes"),
        ({"nodes": [3]}, "ray.nodes"),
        ("all", "ray"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_starts(values, key):
    with pytest.raises(ConfigError, match=rf"es_manager\.{key}\b"):
        EnvStateManager(walks(ray=values))
    assert not titled("envlanes ")


@pytest.mark.parametrize(
    ("nodes", "found"),
    [("all", "abc"), ("worker", "bc"), (("box-2",), "b"), (("10.0.0.3",), "c"), (("bbbb", "aaaa"), "ab"), (("b",), "")],
)
def test_nodes_are_named_by_id_address_or_host(nodes, found):
    there = [
        Node("a" * 56, "box-1/aaaaaa", "10.0.0.1", is_head=True),
        Node("b" * 56, "box-2/bbbbbb", "10.0.0.2"),
        Node("c" * 56, "box-3/cccccc", "10.0.0.3"),
    ]
    options = RayOptions(nodes=nodes)
    assert "".join(node.node_id[0] for node in there if ray_cluster.is_wanted(node, options)) == found


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_not_waited_for(address):
    with pytest.raises(LaneStartError, match=f"no answer from '{address}'"):
        ray_cluster.expect_answer(address)
    ray_cluster.expect_answer("auto")
