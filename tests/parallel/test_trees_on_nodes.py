"""Trees whose environments live on nodes: those of the main process, also where a node is lost while they grow."""

from __future__ import annotations

from typing import Any

import pytest

from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from ragen.parallel.kinds import ray_cluster
from support.episodes import freeze
from support.leftovers import until
from support.simulated_nodes import SimulatedCluster
from support.trees import TOKENIZER, Asked, configuration, played

pytestmark = pytest.mark.cluster

ON_NODES = ("es_manager.backend=ray", "es_manager.use_multiprocessing=true", "es_manager.max_workers=3")
THREE = ("one", "two", "three")


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes, and no Ray."""
    monkeypatch.setattr(ray_cluster, "RayCluster", SimulatedCluster)
    monkeypatch.setattr(SimulatedCluster, "names", THREE)


@pytest.fixture(scope="module")
def here() -> Any:
    return freeze(played(configuration()))


def agents(manager: Any) -> list[Any]:
    return list(manager._engine.homes.pool.kind._agents.values())


@pytest.mark.parametrize("lost_before", [(), (1,), (2, 3)], ids=["none is lost", "one", "two, one after the other"])
def test_trees_on_nodes_are_those_of_the_main_process(lost_before: tuple[int, ...], here: Any) -> None:
    config = configuration(*ON_NODES)

    def nodes() -> set[str]:
        here, *elsewhere = proxy.train_es_manager.lane_stats()
        assert here.envs == 0
        return {lane.node for lane in elsewhere if lane.envs}

    def watch(turn: int, _: int) -> None:
        if turn == 0:
            assert nodes() == set(THREE)
        if turn in lost_before:
            cluster.remove(THREE[lost_before.index(turn)])

    with LLMAgentProxy(config, Asked(config), TOKENIZER) as proxy:
        proxy.prepare()
        cluster = SimulatedCluster.last
        assert cluster is not None and until(lambda: all(agent.is_up for agent in agents(proxy.train_es_manager)))
        assert freeze(proxy.play({}, on_turn=watch)) == here
        branches = proxy.train_es_manager.branches
        at_last = {proxy.train_es_manager.home(env_id) for env_id in branches}
        assert len(branches) > 6 and "main" not in at_last
        proxy.train_es_manager.reset(seed=1)  # asks every lane, also one whose episodes were all over
        assert nodes() == set(THREE[len(lost_before) :])
