"""The command ``ragen cluster``: checks whether the nodes of a Ray cluster can play environments, and why not.

An agent is placed on each node, as for workers, and one of its workers loads the configuration's environment classes.
Environments are not built, no resources are claimed, and everything ends with the command.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ragen.commands import CommandParser
from ragen.llm_agent.config.command_line import add_config_arguments, main_of
from ragen.output import new_console, print_table
from ragen.parallel.episode.outcome import Raised
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.kinds import ray_cluster
from ragen.parallel.kinds.ray import AgentClient, Node, NodeHandle, close_all, installed, versions
from ragen.parallel.lanes.exchange import Answer, Reply, ask, end_all
from ragen.parallel.lanes.handle import LaneKind
from ragen.parallel.lanes.lane import Lane, Request
from ragen.parallel.lanes.orders import Rebuild
from ragen.parallel.settings import Settings

PROG = "ragen cluster"
DEFAULT_CONFIG = "base"
SOUND, UNSOUND = 0, 1
FAR_OFF = 1.0  # seconds of clock skew beyond which logs of several nodes cannot be read together
_LOOK = 0.02  # seconds between looks whether agents are up
COLUMNS = ("address", "reachable", "versions", "code", "workers now", "round trip", "clock")


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Check whether each node of a Ray cluster can play environments: whether it is "
        "reachable, has the same versions, can import the configuration's environments, and has room for workers. "
        "es_manager.ray selects the cluster and its nodes; without an address, RAY_ADDRESS is used, or else a "
        "cluster of this machine alone. The exit code is 1 if a node cannot be used.",
        examples=(f"{prog} --config-name my_config es_manager.ray.address=box-1:6379",),
    )
    add_config_arguments(top, DEFAULT_CONFIG)
    return top


def run(config: Any) -> int:
    """Check the cluster of a configuration, and print the findings; returns the exit code."""
    from ragen.llm_agent.config.environments import read_config

    managed = read_config(config, "train")
    settings: Settings = managed.engine
    by_tag = {entry.spec.tag: entry.spec for entry in managed.entries}
    specs = [replace(spec, env_id=number) for number, spec in enumerate(by_tag.values())]
    cluster = ray_cluster.RayCluster(settings.ray, settings.start_method, ["numpy"])
    try:
        reports = inquire(cluster, specs, settings)
        if not reports:
            print(f"error: {cluster.why_none()}", file=sys.stderr)
            return UNSOUND
    finally:
        cluster.close()
    _show(reports, list(by_tag))
    return SOUND if all(report.is_sound for report in reports) else UNSOUND


main = main_of(parser, PROG, run)
"""Runs the command. Exit codes: 0 if all nodes can be used, 1 if one cannot or there is no such cluster, 2 for an
invalid configuration."""


@dataclass(frozen=True)
class NodeReport:
    """The findings about a node.

    Attributes:
        node: The node.
        why: Why no worker can run there, in words that follow its name; "" if one did.
        differences: Packages with other versions than here, in words.
        seats: Number of workers for which there is room now, according to their claims.
        round_trip_s: Round-trip time of a call in seconds; None if the node was not reached.
        skew_s: Seconds by which its clock is ahead of ours; None if it was not reached.
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
        """Whether an agent answers there."""
        return self.round_trip_s is not None

    @property
    def is_sound(self) -> bool:
        """Whether environments can be played there."""
        return not (self.why or self.differences or self.missing) and self.seats > 0


def inquire(cluster: ray_cluster.RayCluster, specs: Iterable[EnvSpec], settings: Settings) -> list[NodeReport]:
    """Place an agent on each node, start a worker there, and have it load the classes of environments.

    Args:
        cluster: The cluster.
        specs: One for each tag, with unique ids; their environments are not built.
        settings: Time-outs. No call takes much longer than twice the ``startup_timeout``.

    Returns:
        A report for each selected node.
    """
    nodes, specs = cluster.nodes(), list(specs)
    tags = {spec.env_id: spec.tag for spec in specs}
    seats = {node.node_id: cluster.seats(node, None) for node in nodes}
    agents = [AgentClient(cluster, node, 0) for node in nodes]
    try:
        deadline = time.monotonic() + settings.startup_timeout
        while any(not agent.is_up and not agent.why for agent in agents) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        lanes = {agent: Lane(f"check on {agent.node.name}", _Only(agent)) for agent in agents if agent.is_up}
        request = Request(0, Rebuild.of(specs, []), settings.step_timeout, settings.startup_timeout)
        try:
            replies = ask(dict.fromkeys(lanes.values(), request))
        finally:
            end_all(lanes.values())
        reply_of = {agent: replies[lane] for agent, lane in lanes.items()}
        return [_report(agent, seats[agent.node.node_id], reply_of.get(agent), tags) for agent in agents]
    finally:
        close_all(agents)


class _Only(LaneKind):
    """Workers on one node."""

    name, slots, is_remote = "check", 1, True

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent

    def start(self, lane: str) -> NodeHandle:
        return NodeHandle(self._agent, lane)

    def close(self) -> None:
        """There is nothing to end."""


def _report(agent: AgentClient, seats: int, reply: Reply | None, tags: Mapping[int, str]) -> NodeReport:
    here = {**versions(), **installed()}
    there = {name: agent.facts[name] for name in here if name in agent.facts}
    differences = [f"{name} {there[name]} (here {here[name]})" for name in there if there[name] != here[name]]
    if reply is None:
        return NodeReport(agent.node, agent.why or "did not answer in time", differences, seats)
    reached = agent.round_trip_s, agent.skew_s
    if not isinstance(reply, Answer):
        return NodeReport(agent.node, f"did not start a worker: {reply.what}", differences, seats, *reached)
    missing = {tags[each.env_id]: each.value.text for each in reply.outcomes if isinstance(each.value, Raised)}
    return NodeReport(agent.node, "", differences, seats, *reached, missing)


def _show(reports: Sequence[NodeReport], tags: Sequence[str]) -> None:
    from ragen.llm_agent.evaluation.tables import tables_of

    console = new_console(is_plain=True)
    cells = zip(*map(_cells, reports), strict=True)
    columns = {head: list(each) for head, each in zip(COLUMNS, cells, strict=True)}
    for table in tables_of("Nodes", [report.node.name for report in reports], columns, console.width, "node"):
        print_table(console, table)
    sound = sum(report.is_sound for report in reports)
    plural = "s" if len(reports) > 1 else ""
    print(f"{sound} of {len(reports)} node{plural} can play {', '.join(tags)}.")
    for line in lines_of(reports):
        print(line)


def _cells(report: NodeReport) -> Iterator[str]:
    yield report.node.address
    yield "yes" if report.is_reached else "NO"
    yield "DIFFER" if report.differences else "equal" if report.is_reached else "?"
    yield "MISSING" if report.missing else "?" if report.why else "found"
    yield "NONE" if report.why and report.is_reached else str(report.seats or "NO ROOM")
    yield f"{1e3 * report.round_trip_s:.1f} ms" if report.round_trip_s is not None else "?"
    yield f"{report.skew_s:+.2f} s" if report.skew_s is not None else "?"


def lines_of(reports: Sequence[NodeReport]) -> Iterator[str]:
    """Problems of nodes and notes about the cluster, one line each, with all nodes that have the problem."""
    nodes: dict[str, list[str]] = {}
    for report in reports:
        for problem in _problems(report):
            nodes.setdefault(problem, []).append(report.node.name)
    for problem, names in nodes.items():
        yield f"node{'s' if len(names) > 1 else ''} {', '.join(names)}: {problem}"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        yield (
            "cluster: this process needed no token (RAY_AUTH_MODE is not token): without one, anyone who "
            "reaches the ports of a cluster can run code on it. See docs/several_machines.md."
        )


def _problems(report: NodeReport) -> Iterator[str]:
    if report.why:
        yield report.why
    if report.differences and not report.why:
        yield f"has {', '.join(report.differences)}; install the same version there"
    for tag, why in report.missing.items():
        yield f"tag {tag}: {why}"
    if not report.seats:
        yield "has no room for a worker now (es_manager.ray.num_cpus and .resources say what each claims)"
    if report.skew_s is not None and abs(report.skew_s) > FAR_OFF:
        way = "ahead" if report.skew_s > 0 else "behind"
        yield (
            f"its clock is {abs(report.skew_s):.1f} s {way}; workers are not affected, but logs of several nodes are "
            "hard to compare"
        )
