"""Lanes on a real Ray cluster of this machine: a head and three nodes, each with a raylet, an agent and workers.

Without Ray's part the same is tried in ``engine/tests/test_nodes.py``, and what environments do to their workers in
``engine/tests/test_faults.py``.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import psutil
import pytest

from envlanes.errors import ConfigError, LaneStartError
from support import leftovers
from support.episodes import EnvStateManager, Holder, freeze, play, sequential, walks
from support.leftovers import until
from support.local_cluster import LocalCluster

ray = pytest.importorskip("ray")

TURNS = 6
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # as other tests of Ray do in this process, which reads it once
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        with LocalCluster(3, silence=4.0) as cluster:  # a busy machine is slow, and not dead
            yield cluster
    assert until(lambda: not connections()), "what outlives Ray's own connections is ours"


@pytest.fixture
def three_nodes(cluster):
    """Three nodes that live."""
    while len(cluster.node_ids()) < 3:
        cluster.add_node()
    assert until(lambda: set(cluster.node_ids()) <= {node["NodeID"] for node in ray.nodes() if node["Alive"]}, 30)


def connections():
    """Descriptors of TCP: in this process Ray's alone, which it opens when it likes and keeps until its shutdown."""
    return {str(each.fd) for each in psutil.Process().net_connections("tcp")}


@pytest.fixture
def without_connections(monkeypatch):
    """Count Ray's connections when Ray has ended."""
    all_of_them = leftovers.descriptors
    monkeypatch.setattr(
        leftovers, "descriptors", lambda: {each for each in all_of_them() if each[0] not in connections()}
    )


@pytest.fixture
def leaves_nothing(three_nodes, without_connections, leaves_nothing):
    """Neither here, nor a process of ours on any node; the nodes were there before."""
    yield
    assert until(lambda: not ours()), ours()


@pytest.fixture(scope="module")
def honest():
    """The results of two episodes in the main process."""
    return sequential(walks(), TURNS, episodes=2)


def ours():
    """Supervisors, workers and agents, wherever in the cluster, but for supervisors that stay."""
    titles = "envlanes worker", "envlanes supervisor", "ray::NodeAgent"
    found = []
    for pid, title in leftovers.processes().items():
        if title.startswith(titles):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def lanes(manager):
    """Process ids of lanes with environments, by node."""
    assert manager.lane_stats()[0].envs == 0
    return {lane.node.rpartition("/")[2]: lane.pid or 0 for lane in manager.lane_stats() if lane.envs}


def index_of(cluster, node):
    return next(index for index, node_id in enumerate(cluster.node_ids()) if node_id.startswith(node))


def agent_of(pid):
    """The agent of a worker: the parent of its supervisor."""
    return psutil.Process(pid).parents()[1]


def test_lanes_live_on_all_nodes_and_give_equal_rollouts(cluster, honest):
    with EnvStateManager(walks()) as manager:
        assert freeze(play(manager, TURNS)) == honest[0]
        used = lanes(manager)
        assert used.keys() == {node_id[:6] for node_id in cluster.node_ids()}
        assert len({agent_of(pid).pid for pid in used.values()}) == 3
        assert ray.available_resources().get("CPU") == 6 - 3  # what three lanes claim
        assert freeze(play(manager, TURNS)) == honest[1]
    assert until(lambda: ray.available_resources().get("CPU") == 6)


def test_a_lane_an_agent_and_a_node_are_lost_and_a_new_node_is_used(cluster, honest):
    with EnvStateManager(walks(max_workers=None)) as manager:
        lost: list[str] = []

        def lose(turn):
            node, pid = next((node, pid) for node, pid in lanes(manager).items() if pid)
            if turn == 0:
                os.kill(pid, signal.SIGKILL)
            elif turn == 1:
                agent_of(pid).kill()
            elif turn == 2:
                lost.append(cluster.remove_node(index_of(cluster, node)))

        assert freeze(play(manager, TURNS, lose)) == honest[0]

        def used():
            manager.reset(0)
            return set(lanes(manager))

        assert lost and until(lambda: lost[0][:6] not in used(), 30)  # what is left of it ends within a second
        new = cluster.add_node()
        assert until(lambda: new[:6] in used(), 30)
        manager.reset(999)
        assert freeze(play(manager, TURNS, seed=1000)) == honest[0]
    cluster.remove_node(index_of(cluster, new))


def test_an_actor_has_a_manager_and_nothing_is_left_when_it_is_killed(honest):
    holder = ray.remote(Holder).options(num_cpus=0).remote(walks())
    assert ray.get(holder.play.remote(TURNS)) == honest[0]
    assert ray.get(holder.workers.remote()) == 3 and len(ours()) > 3
    ray.kill(holder)


def test_what_is_not_free_cannot_be_claimed():
    with pytest.raises(LaneStartError, match=r"no node of the cluster has \{'CPU': 3\} free"):
        EnvStateManager(walks(ray={"num_cpus": 3}))
    with pytest.raises(LaneStartError, match=r"ray.nodes = \['nowhere'\]: no such node is alive; nodes: .*/"):
        EnvStateManager(walks(ray={"nodes": ["nowhere"]}))
    with pytest.raises(ConfigError, match="this process is connected to the cluster at"):
        EnvStateManager(walks(ray={"address": "10.0.0.1:6379"}))


def test_workers_stay_on_the_nodes_that_are_named(cluster, honest):
    chosen = cluster.node_ids()[1]
    with EnvStateManager(walks(ray={"nodes": [chosen[:12]], "num_cpus": 0})) as manager:
        assert freeze(play(manager, TURNS)) == honest[0]
        assert lanes(manager).keys() == {chosen[:6]}
