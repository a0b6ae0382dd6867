"""Lanes on nodes that come, go, stop and are killed: the rollouts stay equal. Ray itself is stood in for.

What an environment does to its worker is in ``test_faults``, which runs over these nodes too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen.errors import ConfigError, LaneStartError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel.nodes import connection, ray_cluster, wire
from ragen.parallel.nodes.agent import Agent
from ragen.parallel.nodes.kind import RayKind
from ragen.parallel.nodes.link import SILENCE, Link, Node, Stage
from ragen.parallel.nodes.options import RayOptions
from ragen.parallel.settings import Settings
from support.episodes import config, freeze, play, sequential
from support.leftovers import is_over, processes, titled, until
from support.simulated_nodes import SimulatedCluster
from support.slow_wire import SlowWire

pytestmark = pytest.mark.cluster

TURNS = 6
THREE = ("one", "two", "three")


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes of two places each, and no Ray."""
    monkeypatch.setattr(ray_cluster, "RayCluster", SimulatedCluster)
    monkeypatch.setattr(SimulatedCluster, "names", THREE)


def walks(**es_manager: Any) -> dict[str, Any]:
    """Eight environments on three lanes."""
    settings = {"use_multiprocessing": True, "backend": "ray", "max_workers": 3, **es_manager}
    return config({"Good": {"env_type": "support.faulty_envs:Walk"}}, [("Good", 8)], **settings)


@pytest.fixture(scope="module")
def honest() -> list[list[dict[str, Any]]]:
    """What two episodes give in the main process."""
    return sequential(walks(), TURNS, episodes=2)


@contextlib.contextmanager
def on_nodes(**es_manager: Any) -> Iterator[tuple[EnvStateManager, SimulatedCluster]]:
    with EnvStateManager(walks(**es_manager)) as manager:
        cluster = SimulatedCluster.last
        assert until(lambda: cluster.pids.keys() == set(THREE))
        yield manager, cluster


def used(manager: EnvStateManager) -> set[str]:
    """The nodes that environments live on."""
    assert manager.lane_stats()[0].envs == 0
    return {lane.node for lane in manager.lane_stats() if lane.envs}


def link_to(manager: EnvStateManager, name: str) -> Link | None:
    kind: Any = manager._engine.homes.pool.kind
    return next((link for link in kind._links.values() if link.node.name == name), None)


def is_open(manager: EnvStateManager, name: str) -> bool:
    return (link := link_to(manager, name)) is not None and link.stage is Stage.OPEN


def restarts(manager: EnvStateManager) -> int:
    return sum(lane.restarts for lane in manager.lane_stats())


def test_each_node_has_its_share_of_the_lanes(honest: list[list[dict[str, Any]]]) -> None:
    with on_nodes() as (manager, _):
        assert freeze(play(manager, TURNS)) == honest[0]
        assert used(manager) == set(THREE)
        assert len(titled("ragen lane")) == 3
        assert all(" on " in processes()[pid] for pid in titled("ragen lane"))
        assert freeze(play(manager, TURNS)) == honest[1]


def test_as_many_lanes_as_the_nodes_have_places_unless_told_otherwise() -> None:
    with on_nodes(max_workers=None) as (manager, _):
        play(manager, 1)
        assert len(manager.lane_stats()) == 1 + 6


LOSSES: dict[str, Callable[[SimulatedCluster], None]] = {
    "its agent is killed": lambda cluster: cluster.kill_agent("two"),
    "it is removed": lambda cluster: cluster.remove("two"),
    "its supervisor is killed": lambda _: os.kill(titled("ragen supervisor")[0], signal.SIGKILL),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("at", [0, 2])
def test_a_node_is_lost_and_the_rollout_is_equal(loss: str, at: int, honest: list[list[dict[str, Any]]]) -> None:
    with on_nodes() as (manager, cluster):

        def lose(turn: int) -> None:
            if turn == at:
                workers = [lane.pid for lane in manager.lane_stats()[1:] if lane.pid]
                LOSSES[loss](cluster)
                assert until(lambda: any(map(is_over, workers)))

        assert freeze(play(manager, TURNS, lose)) == honest[0]
        assert freeze(play(manager, TURNS)) == honest[1]
        assert restarts(manager) >= 1
        if loss == "it is removed":
            assert used(manager) == {"one", "three"}


def test_all_nodes_but_one_are_lost_one_after_the_other(honest: list[list[dict[str, Any]]]) -> None:
    with on_nodes() as (manager, cluster):
        victims = iter(("one", "three"))
        assert (
            freeze(play(manager, TURNS, lambda turn: turn % 2 and turn < 4 and cluster.remove(next(victims))))
            == honest[0]
        )
        assert freeze(play(manager, TURNS)) == honest[1]
        assert used(manager) == {"two"}


def test_without_any_node_left_the_main_process_goes_on(honest: list[list[dict[str, Any]]]) -> None:
    with on_nodes(max_restarts=1) as (manager, cluster):

        def lose_all(turn: int) -> None:
            if turn == 2:
                workers = [lane.pid for lane in manager.lane_stats()[1:] if lane.pid]
                for name in THREE:
                    cluster.remove(name)
                assert until(lambda: all(map(is_over, workers)))  # a moment after their agents

        assert freeze(play(manager, TURNS, lose_all)) == honest[0]
        assert manager.lane_stats()[0].envs == 8


def test_a_node_that_stops_is_left_when_its_environments_are_overdue(
    honest: list[list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    with on_nodes(step_timeout=0.5) as (manager, cluster):
        stop = {2: lambda: cluster.signal("two", signal.SIGSTOP)}
        assert freeze(play(manager, TURNS, lambda turn: stop.get(turn, int)())) == honest[0]
        assert used(manager) == {"one", "three"}
        assert "two does not answer" in caplog.text or "missed a deadline of 0.5 s" in caplog.text
        cluster.signal("two", signal.SIGCONT)
        assert freeze(play(manager, TURNS)) == honest[1]


def test_a_worker_that_was_stopped_before_its_turn_is_overdue(honest: list[list[dict[str, Any]]]) -> None:
    with on_nodes(step_timeout=0.5) as (manager, _):

        def stop(turn: int) -> None:
            if turn == 1:
                os.kill(next(lane.pid for lane in manager.lane_stats() if lane.node == "two"), signal.SIGSTOP)

        assert freeze(play(manager, TURNS, stop)) == honest[0]
        assert restarts(manager) >= 1


def test_what_is_missing_on_a_node_is_told_with_its_name(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "only_here.py").write_text("from support.faulty_envs import Walk\nclass Mine(Walk): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = walks()
    settings["custom_envs"]["Good"]["env_type"] = "only_here:Mine"
    with EnvStateManager(settings) as manager:
        (tmp_path / "only_here.py").unlink()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        play(manager, 1)
        assert manager.lane_stats()[0].envs == 8
    assert re.search(r"No module named 'only_here' \(on node (one|two|three): install it there", caplog.text)


def test_a_node_that_stops_and_is_dead_as_ray_says_is_left_before_any_deadline(
    honest: list[list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    with on_nodes(step_timeout=1000) as (manager, cluster):

        def stop(turn: int) -> None:
            if turn == 2:
                cluster.signal("two", signal.SIGSTOP)
                cluster.there.remove("two")
                cluster.dead.add("two")

        assert freeze(play(manager, TURNS, stop)) == honest[0]
        assert used(manager) == {"one", "three"}
        assert "node two is dead" in caplog.text


def test_a_node_that_is_silent_for_a_while_is_not_given_up(honest: list[list[dict[str, Any]]]) -> None:
    with on_nodes() as (manager, cluster):
        link = link_to(manager, "two")

        def stop(turn: int) -> None:
            if turn == 2:
                cluster.signal("two", signal.SIGSTOP)
                assert until(lambda: link and link.is_silent)
                cluster.signal("two", signal.SIGCONT)

        assert freeze(play(manager, TURNS, stop)) == honest[0]
        assert restarts(manager) == 0 and cluster.placed == sorted(cluster.placed, key=THREE.index)


def test_a_network_that_is_slower_than_turns_may_be_costs_nobody_his_worker(
    honest: list[list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    contact, wires = SimulatedCluster.contact, {}

    def over_a_wire(cluster: SimulatedCluster, node: Node, *arguments: Any) -> wire.Contact:
        found = contact(cluster, node, *arguments)
        if node.name != "two":
            return found
        wires["two"] = stack.enter_context(SlowWire(found.port))
        return found._replace(port=wires["two"].port)

    monkeypatch.setattr(SimulatedCluster, "contact", over_a_wire)
    with contextlib.ExitStack() as stack, on_nodes(step_timeout=0.5) as (manager, cluster):

        def slow_down(turn: int) -> None:
            if turn == 2:
                assert "two" in used(manager)
                wires["two"].delay = 0.4  # there and back takes longer than any turn may
            elif turn == 3:
                wires["two"].stand_still(1.3 * SILENCE)
            elif turn == 4:
                wires["two"].delay = 0.0

        assert freeze(play(manager, TURNS, slow_down)) == honest[0]
        assert restarts(manager) == 0 and cluster.placed == sorted(cluster.placed, key=THREE.index)
        assert used(manager) == set(THREE)


def test_a_node_that_joins_is_used_from_the_next_reset_on(honest: list[list[dict[str, Any]]]) -> None:
    with on_nodes() as (manager, cluster):
        cluster.remove("three")
        assert freeze(play(manager, TURNS)) == honest[0]
        assert used(manager) == {"one", "two"}
        cluster.there.append("four")
        assert until(lambda: is_open(manager, "four"))
        assert freeze(play(manager, TURNS)) == honest[1]
        assert used(manager) == {"one", "two", "four"}
        assert until(lambda: link_to(manager, "three") is None), "of what has left nothing is kept"


def test_an_agent_that_ends_after_a_long_life_is_placed_again_at_once() -> None:
    with on_nodes() as (manager, cluster):
        play(manager, 1)
        kind: Any = manager._engine.homes.pool.kind
        kind._losses["two"].count = 5  # in a row, long ago
        kind._links["two"].opened -= 100
        cluster.kill_agent("two")
        assert until(lambda: cluster.placed.count("two") == 2 and is_open(manager, "two"))
        play(manager, 1)
        assert used(manager) == set(THREE)


def test_where_no_node_has_a_place_the_manager_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedCluster, "seats", lambda self, node, most: 0)
    with pytest.raises(LaneStartError, match="there is none"):
        EnvStateManager(walks())


def test_two_managers_share_the_nodes() -> None:
    with on_nodes() as (first, cluster), on_nodes() as (second, _):
        play(first, 1)
        play(second, 1)
        assert sorted(cluster.placed) == sorted(THREE) and len(titled("ragen lane")) == 3


# The agent's door


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent("127.0.0.1", "here", "forkserver", [])
    yield agent
    agent.close()


def contact_of(agent: Agent, secret: bytes | None = None) -> wire.Contact:
    return wire.Contact("127.0.0.1", agent.port, agent.secret if secret is None else secret)


def test_who_does_not_know_the_secret_is_not_served(agent: Agent) -> None:
    with pytest.raises((EOFError, ConnectionError)):
        wire.call(contact_of(agent, b"another one"), wire.Wish(wire.CONTROL), 5.0)
    wire.call(contact_of(agent), wire.Wish(wire.CONTROL), 5.0).close()
    assert until(agent.ended.is_set)  # its main process has gone


def test_strangers_hear_nothing_and_keep_nobody_out(agent: Agent) -> None:
    with contextlib.ExitStack() as strangers:
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", agent.port)))
            stranger.sendall(garbage)
            assert len(stranger.recv(1000)) == wire.NONCE
            stranger.settimeout(5.0)
            if len(garbage) > 1000:
                with contextlib.suppress(ConnectionError):
                    assert stranger.recv(1000) == b""
        with wire.call(contact_of(agent), wire.Wish(wire.CONTROL), 5.0):
            assert not agent.ended.is_set()


def test_an_impostor_at_the_agents_port_is_found_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        contact = wire.Contact("127.0.0.1", impostor.getsockname()[1], b"secret")
        caller = socket.create_connection(("127.0.0.1", contact.port))
        with caller:
            theirs, _ = impostor.accept()
            with theirs:
                theirs.sendall(os.urandom(wire.NONCE + 32))
                with pytest.raises(wire.Refused):
                    wire.introduce(caller, contact.secret, wire.Wish(wire.LANE, os.urandom(16), "lane 0"))


def test_a_wish_travels_as_it_is() -> None:
    wish = wire.Wish(wire.LANE, bytes(range(16)), "quarantine of env 7")
    assert wire.Wish.of(wish.packed()) == wish
    assert wire.Wish.of(wish._replace(lane="ö" * 200).packed()).lane.startswith("ö" * 40)


# Options


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"adress": "auto"},
            "es_manager.ray.adress = 'auto': there is no such key; 'es_manager.ray.address' was meant?",
        ),
        (
            {"address": "ray://head:10001"},
            "es_manager.ray.address = 'ray://head:10001': lanes cannot be had over Ray C",
        ),
        ({"num_cpus": -1}, "es_manager.ray.num_cpus = -1: expected a number of at least 0."),
        ({"num_cpus": True}, "es_manager.ray.num_cpus = True: expected a number"),
        ({"resources": {"gpu box": "two"}}, "es_manager.ray.resources.gpu box = 'two': expected a number"),
        ({"resources": {"CPU": 1}}, "es_manager.ray.resources.CPU = 1: that is no custom resource"),
        ({"resources": 3}, "es_manager.ray.resources = 3: expected a mapping"),
        ({"nodes": "workers"}, "es_manager.ray.nodes = 'workers': expected 'all', 'worker', or a list of nodes."),
        ({"nodes": []}, "es_manager.ray.nodes = []: expected"),
        ({"nodes": [3]}, "es_manager.ray.nodes = [3]: expected"),
        ({"placement_group": ""}, "es_manager.ray.placement_group = '': expected a text, or null."),
        ({"runtime_env": "."}, "es_manager.ray.runtime_env = '.': expected a mapping of plain values"),
        ("all", "es_manager.ray = 'all': expected a mapping"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_starts(values: Any, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        EnvStateManager(walks(ray=values))
    assert str(refused.value).startswith(says)
    assert not titled("node ")


@pytest.mark.parametrize(
    ("nodes", "found"),
    [("all", "abc"), ("worker", "bc"), (("box-2",), "b"), (("10.0.0.3",), "c"), (("bbbb", "aaaa"), "ab"), (("b",), "")],
)
def test_nodes_are_named_by_id_address_or_host(nodes: Any, found: str) -> None:
    there = [
        Node("a" * 56, "box-1/aaaaaa", "10.0.0.1", is_head=True),
        Node("b" * 56, "box-2/bbbbbb", "10.0.0.2"),
        Node("c" * 56, "box-3/cccccc", "10.0.0.3"),
    ]
    options = RayOptions(nodes=nodes)
    assert "".join(node.node_id[0] for node in there if ray_cluster._is_wanted(node, options)) == found


def test_settings_take_options_as_a_mapping() -> None:
    shipped = RayOptions.of({"runtime_env": {"working_dir": ".", "py_modules": ["s3://there/a.zip", "b"]}})
    assert shipped.environment()["py_modules"] == ["s3://there/a.zip", "b"] and shipped.local_paths() == [".", "b"]
    assert hash(shipped) != hash(RayOptions()) and RayOptions.of({"runtime_env": None}) == RayOptions()
    settings = Settings.of(backend="ray", ray={"num_cpus": 0.5, "resources": {"box": 1}, "nodes": ["a", "b"]})
    assert settings.ray == RayOptions(num_cpus=0.5, resources=(("box", 1),), nodes=("a", "b"))
    assert settings.ray.claims() == {"CPU": 0.5, "box": 1}
    assert hash(settings.ray) == hash(RayOptions.of({"num_cpus": 0.5, "resources": {"box": 1}, "nodes": ["a", "b"]}))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_not_waited_for(address: str) -> None:
    with pytest.raises(LaneStartError, match=f"nobody answers at '{address}'"):
        connection._expect_answer(address)
    connection._expect_answer("auto")


@pytest.mark.parametrize(("mode", "warns"), [("token", False), ("disabled", True), (None, True)])
def test_a_cluster_that_is_started_without_a_token_is_warned_of(
    mode: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    connection._warn_if_open()
    assert ("may run code on the cluster" in caplog.text) == warns


def test_a_kind_forgets_its_nodes_in_a_fork(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    kind = RayKind(SimulatedCluster(RayOptions(), "forkserver", [], 10.0), 2)
    try:
        handle = kind.start("lane 0")
        assert until(lambda: handle.receive() is None and handle.is_up)
        child = os.fork()
        if not child:
            kind.forget_in_child()
            handle.forget_in_child()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert handle.end().status == -signal.SIGKILL
        assert kind.is_misplaced(handle) is False
    finally:
        kind.close()
    assert "has lost" not in caplog.text
    assert Node("x", "x", "") == Node("x", "x", "", {"CPU": 1.0})
