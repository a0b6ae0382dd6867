"""A cluster without Ray: each of its nodes is an agent in a process of this machine. It comes and goes as it is told.

It stands in for :class:`ragen.parallel.nodes.ray_cluster.RayCluster`, so that everything but Ray's own part is tried
where no cluster is started: the agents, the connections, the workers and what kills them are real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache

from ragen.errors import LaneStartError
from ragen.parallel.nodes.link import Node
from ragen.parallel.nodes.options import RayOptions
from ragen.parallel.nodes.wire import Contact
from ragen.parallel.process import linux
from support.leftovers import is_over, until


class SimulatedCluster:
    """Nodes that are processes."""

    names: Sequence[str] = ("one", "two")
    last: SimulatedCluster  # the one that was made last

    def __init__(self, options: RayOptions, start_method: str, preload: Sequence[str], startup_timeout: float) -> None:
        self.how = [start_method, *preload]
        self.there = list(SimulatedCluster.names)
        self.pids: dict[str, int] = {}  # of agents
        self.dead: set[str] = set()  # nodes of which it would say so
        self.placed: list[str] = []
        SimulatedCluster.last = self

    def nodes(self) -> list[Node]:
        return [Node(name, name, "127.0.0.1", {"CPU": 2.0}) for name in self.there]

    def seats(self, node: Node, most: int | None) -> int:
        return 2 if most is None else most

    def may_have_room(self) -> bool:
        return False

    def why_none(self) -> str:
        return "there is none."

    def contact(self, node: Node, seats: int, given_up: threading.Event) -> Contact:
        self.release(node)
        if node.name not in self.there:
            raise LaneStartError("could not start an agent: it is gone")
        self.pids[node.name], contact = machine().start(node.name, self.how)
        self.placed.append(node.name)
        return contact

    def verdict(self, node: Node) -> str:
        return "is dead" if node.name in self.dead else ""

    def release(self, node: Node) -> None:
        if (pid := self.pids.pop(node.name, None)) is not None:
            family = linux.descendants(pid)
            _signal(pid, signal.SIGKILL)
            assert until(lambda: is_over(pid))
            for each in family:  # those of a node that was stopped
                _signal(each, signal.SIGCONT)

    def close(self) -> None:
        for name in list(self.pids):
            self.release(Node(name, name, ""))

    # What happens to nodes

    def remove(self, name: str) -> None:
        """Kill a node, which is not there any more."""
        self.there.remove(name)
        self.dead.add(name)
        self.kill_agent(name)

    def kill_agent(self, name: str) -> None:
        """Kill a node's agent."""
        _signal(self.pids[name], signal.SIGKILL)

    def signal(self, name: str, what: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        pid = self.pids[name]
        for each in (pid, *linux.descendants(pid)):
            _signal(each, what)


def _signal(pid: int, what: signal.Signals) -> None:
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        return


class Machine:
    """What starts nodes: a process that has imported what they need, and forks."""

    def __init__(self) -> None:
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        call = [sys.executable, "-m", "support.nodes_machine"]
        self._process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=path, start_new_session=True
        )
        self._lock = threading.Lock()

    def start(self, name: str, how: list[str]) -> tuple[int, Contact]:
        """Start a node: its process id, and how its agent is reached."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps([name, *how]) + "\n")
            self._process.stdin.flush()
            pid, port, secret = json.loads(self._process.stdout.readline())
        return pid, Contact("127.0.0.1", port, bytes.fromhex(secret))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()


@cache
def machine() -> Machine:
    """The one of this test run; its process ends with the run."""
    return Machine()
