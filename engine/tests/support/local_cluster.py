"""A Ray cluster of several nodes on this machine, whose nodes can be removed and added, for tests.

Each node has its own processes: a raylet, our agent, workers. Connections need a token, as in a secured cluster, unless
``RAY_AUTH_MODE`` says otherwise.
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import Any

from envlanes.closing import Closing

OBJECT_STORE = 80 << 20  # bytes per node; unused by workers
SILENCE = 2.0  # seconds after which Ray declares a silent node dead, instead of half a minute


class LocalCluster(Closing):
    """A head node without processors, and further nodes; this process is connected to it."""

    def __init__(self, nodes: int = 3, cpus: int = 2, silence: float = SILENCE) -> None:
        """Start the cluster.

        Args:
            nodes: Number of nodes besides the head.
            cpus: Number of processors that each declares.
            silence: Approximate seconds without heartbeats after which Ray declares a node dead.
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
        """The address of the cluster."""
        return self._cluster.address

    def node_ids(self) -> list[str]:
        """Ray's ids of the live nodes besides the head, oldest first."""
        return [node.node_id for node in self._nodes]

    def add_node(self) -> str:
        """Start a node; returns its id."""
        self._nodes.append(self._cluster.add_node(num_cpus=self._cpus, object_store_memory=OBJECT_STORE, wait=False))
        return self._nodes[-1].node_id

    def remove_node(self, index: int = 0) -> str:
        """Kill a node as a power cut would, beginning with its raylet; returns its id."""
        node = self._nodes.pop(index)
        self._cluster.remove_node(node, allow_graceful=False)
        return node.node_id

    def raylet_pid(self, index: int = 0) -> int:
        """The process id of a node's raylet."""
        return self._nodes[index].all_processes["raylet"][0].process.pid

    def close(self) -> None:
        """Disconnect, and stop the cluster."""
        self._ray.shutdown()
        self._cluster.shutdown()
