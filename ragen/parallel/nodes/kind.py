"""Workers on the nodes of a Ray cluster: ``es_manager.backend: ray``.

    RayKind                                                 a node
      Link (one for each node) -- control connection ----> agent -> supervisor -> workers
      NodeHandle (one for each lane) -- connection of its own ----------------> worker
      tender, a thread: looks now and then which nodes there are

Ray finds the nodes, places an agent on each, and says which nodes are dead; turns and results never pass through it. A
worker's death shows by the end of its connection, an agent's or a machine's by that of all of them; a machine that
falls silent is one that Ray is asked about. Its lanes are then started on the nodes that are left, and their
environments rebuilt there from their journals, as after any other end of a worker.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from ragen.errors import LaneStartError
from ragen.parallel.lanes.handle import LaneKind, Message, WorkerGone, WorkerHandle
from ragen.parallel.nodes.handle import NodeHandle
from ragen.parallel.nodes.link import Agents, Link, Node, Stage

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between looks at which nodes there are
ROOM_TIMEOUT = 5.0  # seconds for others to give up what they claim
_LONGEST_REST = 64.0  # seconds until an agent is placed once more on a node whose agents always end sooner than that
_CLOSE_TIMEOUT = 5.0  # seconds for all links together


@dataclass
class _Losses:
    """How often in a row agents of a node have ended, and when one may be placed there again."""

    count: int = 0
    until: float = 0.0


class Cluster(Agents, Protocol):
    """What is needed of a cluster; :class:`ragen.parallel.nodes.ray_cluster.RayCluster` says how it is done."""

    def nodes(self) -> list[Node]:
        """The nodes that live and are asked for."""

    def seats(self, node: Node, most: int | None) -> int:
        """How many lanes can claim a place on a node now, of so many that are wanted there; None: all."""

    def may_have_room(self) -> bool:
        """Whether a node has a place as soon as others have given up what they claim."""

    def why_none(self) -> str:
        """Why no node has a place, as a sentence."""

    def close(self) -> None:
        """Let go of it."""


class RayKind(LaneKind):
    """Starts workers on nodes, through an agent on each.

    Attributes:
        name: ``"ray"``.
        is_remote: True.
    """

    name = "ray"
    is_remote = True

    def __init__(self, cluster: Cluster, most: int | None) -> None:
        """Have agents placed, without waiting for them.

        Args:
            cluster: Where; it is closed with the kind, and where this raises.
            most: Most lanes; None for as many as the nodes have room for.

        Raises:
            LaneStartError: There is no node with room for a lane.
        """
        self._most, self._cluster = most, cluster
        self._lock = threading.RLock()
        self._links: dict[str, Link] = {}  # by node, the last one of each
        self._losses: dict[str, _Losses] = {}
        self._closing = threading.Event()
        try:
            self._look()
            deadline = time.monotonic() + ROOM_TIMEOUT
            while not self._links and cluster.may_have_room() and time.monotonic() < deadline:
                self._closing.wait(LOOK / 5)  # the cluster learns of the end of other lanes a little later
                self._look()
            if not self._links:
                raise LaneStartError(cluster.why_none())
        except BaseException:
            cluster.close()
            raise
        self._tender = threading.Thread(target=self._tend, name="ragen looks for nodes", daemon=True)
        self._tender.start()

    @property
    def slots(self) -> int:  # type: ignore[override]
        """Lanes that the nodes have room for now."""
        return max(1, sum(link.seats for link in self._present()))

    @property
    def round_trip_s(self) -> float:  # type: ignore[override]
        """Of the nodes that are there, the slowest one's."""
        return max((link.round_trip_s for link in self._present()), default=0.0)

    def start(self, lane: str, first: Message | None = None) -> NodeHandle:
        """See :meth:`LaneKind.start`; on the node that has most room for it."""
        with self._lock:
            links = self._present()
            if not links:
                raise LaneStartError(f"no node of the cluster can be used{self._whys()}")
            link = min(links, key=_burden)
            try:
                handle = NodeHandle(link, lane)
            except OSError as error:
                raise LaneStartError(f"{lane}: no worker can be started on {link.node.name}: {error}") from error
        if first is not None:
            with contextlib.suppress(WorkerGone):  # receive() says so
                handle.send(first)
        return handle

    def is_misplaced(self, worker: WorkerHandle) -> bool:
        """See :meth:`LaneKind.is_misplaced`: another node would have more room for it, even with it."""
        if not isinstance(worker, NodeHandle):
            return False
        here = len(worker.link.workers) / worker.link.seats
        others = [link for link in self._present() if link is not worker.link and link.stage is Stage.OPEN]
        return any(not link.is_silent and (len(link.workers) + 1) / link.seats < here for link in others)

    def close(self) -> None:
        """See :meth:`LaneKind.close`: agents and what is left of their workers end, and a cluster of our own."""
        self._closing.set()
        with self._lock:
            links = list(self._links.values())
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        for link in links:
            link.close(0.0)
        for link in links:
            link.close(max(0.0, deadline - time.monotonic()))
        self._tender.join(max(0.1, deadline - time.monotonic()))
        self._cluster.close()

    def forget_in_child(self) -> None:
        """See :meth:`LaneKind.forget_in_child`."""
        self._lock = threading.RLock()
        self._closing.set()
        for link in self._links.values():
            link.forget_in_child()

    def _present(self) -> list[Link]:
        with self._lock:
            return [link for link in self._links.values() if link.stage is not Stage.GONE]

    def _whys(self) -> str:
        whys = {f"{link.node.name} {link.why}" for link in self._links.values() if link.why}
        return f": {'; '.join(sorted(whys))}" if whys else ""

    # The tender

    def _tend(self) -> None:
        while not self._closing.wait(LOOK):
            try:
                self._look()
            except Exception as error:  # whatever Ray raises while its head is away
                log.debug("nodes cannot be listed: %s", error)

    def _look(self) -> None:
        """Have an agent placed on each node that has none, and forget those that are no more."""
        nodes = self._cluster.nodes()
        self._forget_all_but({node.node_id for node in nodes})
        with self._lock:
            links = dict(self._links)
        missing = [node for node in nodes if self._is_due(node, links.get(node.node_id))]
        if not missing:
            return
        most = None if self._most is None else -(-self._most // len(nodes))
        for node in missing:
            seats = self._cluster.seats(node, most)
            if seats < 1:
                continue
            with self._lock:
                if not self._closing.is_set():
                    self._links[node.node_id] = Link(node, seats, self._cluster)

    def _forget_all_but(self, known: set[str]) -> None:
        """Of nodes that have left the cluster nothing is needed, unless to say why there is no other one."""
        with self._lock:
            if self._present():
                left = [key for key, link in self._links.items() if link.stage is Stage.GONE and key not in known]
                for key in left:
                    del self._links[key]
                    self._losses.pop(key, None)

    def _is_due(self, node: Node, link: Link | None) -> bool:
        """Whether an agent is to be placed on this node now."""
        losses = self._losses.setdefault(node.node_id, _Losses())
        if link is None:
            return True
        if link.stage is not Stage.GONE:
            return False
        now = time.monotonic()
        if not losses.until:
            if link.opened is not None and link.heard - link.opened > _LONGEST_REST:
                losses.count = 0
            losses.until = now + min(2.0**losses.count - 1, _LONGEST_REST)
            losses.count += 1
        if now < losses.until:
            return False
        losses.until = 0.0
        return True


def _burden(link: Link) -> tuple[bool, float]:
    """What speaks against a link: that it is not open, or silent; and how full its node is."""
    return link.stage is not Stage.OPEN or link.is_silent, (len(link.workers) + 1) / link.seats
