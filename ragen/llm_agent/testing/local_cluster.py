"""A Ray cluster of several nodes on this machine, whose nodes can be removed and added, to try what happens then.

Each node has processes of its own: a raylet, an agent of ours, workers. It needs a token to be spoken with, as a real
cluster should, unless ``RAY_AUTH_MODE`` says otherwise.
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import Any

from ragen.closing import Closing

OBJECT_STORE = 80 << 20  # bytes for each node: lanes keep nothing there
SILENCE = 2.0  # seconds after which Ray says that a node that has fallen silent is dead, instead of half a minute


class LocalCluster(Closing):
    """A head without processors for lanes, and nodes; this process is connected to it."""

    def __init__(self, nodes: int = 3, cpus: int = 2, silence: float = SILENCE) -> None:
        """Start it.

        Args:
            nodes: How many nodes, the head not counted.
            cpus: How many processors each of them says that it has.
            silence: Seconds, more or less, after which Ray takes a node that says nothing for dead.
        """
        if "RAY_AUTH_MODE" not in os.environ:  # before Ray is imported, which reads it once
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        import ray
        from ray.cluster_utils import Cluster

        self._ray, self._cpus = ray, cpus
        common = {"object_store_memory": OBJECT_STORE, "include_dashboard": False}
        health = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": round(150 * silence),
            "health_check_timeout_ms": round(350 * silence),
            "health_check_failure_threshold": 2,
        }
        head = {"num_cpus": 0, "_system_config": health, **common}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: list[Any] = []
        try:
            for _ in range(nodes):
                self.add_node()
            ray.init(address=self._cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        except BaseException:
            self._cluster.shutdown()
            raise

    @property
    def address(self) -> str:
        """How others connect to it."""
        return self._cluster.address

    def node_ids(self) -> list[str]:
        """Ray's ids of the nodes that are there, the head not counted, oldest first."""
        return [node.node_id for node in self._nodes]

    def add_node(self) -> str:
        """Start one more node; its id."""
        self._nodes.append(self._cluster.add_node(num_cpus=self._cpus, object_store_memory=OBJECT_STORE, wait=False))
        return self._nodes[-1].node_id

    def remove_node(self, index: int = 0) -> str:
        """Kill a node as a power cut does: its raylet at once, what depends on it after; its id."""
        node = self._nodes.pop(index)
        self._cluster.remove_node(node, allow_graceful=False)
        return node.node_id

    def raylet_pid(self, index: int = 0) -> int:
        """Process id of a node's raylet."""
        return self._nodes[index].all_processes["raylet"][0].process.pid

    def close(self) -> None:
        """Disconnect, and end all of it."""
        self._ray.shutdown()
        self._cluster.shutdown()
