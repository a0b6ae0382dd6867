"""What can be said of the nodes of a cluster before anything is played on them; nothing is claimed for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ragen.parallel.episode.outcome import Raised
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.lanes.exchange import Answer, Reply, ask, end_all
from ragen.parallel.lanes.handle import LaneKind, Message, WorkerGone
from ragen.parallel.lanes.lane import Lane, Request
from ragen.parallel.lanes.orders import Rebuild
from ragen.parallel.nodes.actor import installed, versions
from ragen.parallel.nodes.handle import NodeHandle
from ragen.parallel.nodes.link import Link, Node, Stage
from ragen.parallel.nodes.ray_cluster import RayCluster
from ragen.parallel.settings import Settings

_CLOSE_TIMEOUT = 5.0  # seconds
_PATIENCE = 0.02  # seconds between looks


@dataclass(frozen=True)
class NodeReport:
    """What was found out about a node.

    Attributes:
        node: Which one.
        why: Why no lane can live there, in words that follow its name; "" where one did.
        differences: What is installed there in another version than here, in words.
        seats: For how many lanes there is room now, by what each of them claims.
        round_trip_s: Seconds that a message there and back takes; None where it was not reached.
        skew_s: Seconds by which its clock is ahead of ours; None where it was not reached.
        missing: Why classes of environments cannot be loaded there, by tag.
    """

    node: Node
    why: str = ""
    differences: Sequence[str] = ()
    seats: int = 0
    round_trip_s: float | None = None
    skew_s: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool:
        """Whether main speaks with an agent there."""
        return self.round_trip_s is not None

    @property
    def is_sound(self) -> bool:
        """Whether environments can be played there."""
        return not (self.why or self.differences or self.missing) and self.seats > 0


def inquire(cluster: RayCluster, specs: Iterable[EnvSpec], settings: Settings) -> list[NodeReport]:
    """Place an agent on each node, start a worker there, and have it load the classes of environments.

    Args:
        cluster: Whose nodes.
        specs: One for each tag, with ids of their own; their environments are not built.
        settings: Time-outs. No call takes longer than twice the ``startup_timeout``, and a little.

    Returns:
        A report for each node that is asked for.
    """
    nodes, specs = cluster.nodes(), list(specs)
    tags = {spec.env_id: spec.tag for spec in specs}
    seats = {node.node_id: cluster.seats(node, None) for node in nodes}
    links = [Link(node, 0, cluster) for node in nodes]
    try:
        _await_opening(links, settings.startup_timeout)
        lanes = {link: Lane(f"check on {link.node.name}", _Only(link)) for link in links if link.contact}
        order = Rebuild.of(specs, [])
        request = Request(0, order, settings.step_timeout, settings.startup_timeout)
        try:
            replies = ask(dict.fromkeys(lanes.values(), request))
        finally:
            end_all(lanes.values())
        reply_of = {link: replies[lane] for link, lane in lanes.items()}
        return [_report(link, cluster, seats[link.node.node_id], reply_of.get(link), tags) for link in links]
    finally:
        for link in links:
            link.close(0.0)
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        for link in links:
            link.close(max(0.0, deadline - time.monotonic()))


class _Only(LaneKind):
    """Workers on one node."""

    name, slots, is_remote = "check", 1, True

    def __init__(self, link: Link) -> None:
        self._link = link

    def start(self, lane: str, first: Message | None = None) -> NodeHandle:
        handle = NodeHandle(self._link, lane)
        if first is not None:
            with contextlib.suppress(WorkerGone):  # receive() says so
                handle.send(first)
        return handle

    def close(self) -> None:
        """There is nothing to end."""


def _await_opening(links: Sequence[Link], seconds: float) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while any(link.stage is Stage.OPENING for link in links) and time.monotonic() < deadline:
        pause.wait(_PATIENCE)


def _report(link: Link, cluster: RayCluster, seats: int, reply: Reply | None, tags: Mapping[int, str]) -> NodeReport:
    here = {**versions(), **installed()}
    there = cluster.installed.get(link.node.node_id, {})
    differences = [f"{name} {there[name]} (here {here[name]})" for name in there if there[name] != here[name]]
    if reply is None:
        why = link.why or "did not answer in time"
        return NodeReport(link.node, why, differences, seats)
    reached = link.round_trip_s, link.skew_s
    if not isinstance(reply, Answer):
        return NodeReport(link.node, f"started no worker: {reply.what}", differences, seats, *reached)
    missing = {tags[each.env_id]: each.value.text for each in reply.outcomes if isinstance(each.value, Raised)}
    return NodeReport(link.node, "", differences, seats, *reached, missing)
