"""The command ``ragen cluster``: can environments be played on the nodes of a Ray cluster, and if not, why not.

On each node an agent is placed, as for lanes, and a worker of it loads the classes that the configuration names; their
environments are not built, nothing is claimed, and all of it has ended when the command has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.llm_agent.config.command_line import add_config_arguments, main_of
from ragen.parallel.settings import Settings

if TYPE_CHECKING:
    from ragen.parallel.nodes.inquiry import NodeReport

PROG = "ragen cluster"
DEFAULT_CONFIG = "base"
SOUND, UNSOUND = 0, 1
FAR_OFF = 1.0  # seconds of clock skew beyond which logs of several nodes cannot be read together
_WIDTH = 120  # columns of a table that is read in a log too
COLUMNS = ("node", "address", "reachable", "versions", "code", "lanes now", "round trip", "clock")


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = argparse.ArgumentParser(
        prog=prog,
        description="Say of each node of a Ray cluster whether environments can be played there: whether it is "
        "reached, has the same versions, can import what the configuration plays, and has room for lanes. "
        "es_manager.ray says which cluster and which nodes; without an address, the one that RAY_ADDRESS names is "
        "looked at, or one of this machine alone. Exit code 1 where a node cannot be used.",
        epilog=f"Example: {prog} --config-name my_config es_manager.ray.address=box-1:6379",
    )
    add_config_arguments(top, DEFAULT_CONFIG)
    return top


def run(config: Any) -> int:
    """Look at the cluster of a configuration, and print what was found; the exit code."""
    from ragen.llm_agent.config.environments import read_config
    from ragen.parallel.nodes.inquiry import inquire
    from ragen.parallel.nodes.ray_cluster import RayCluster

    managed = read_config(config, "train")
    settings: Settings = managed.engine
    by_tag = {entry.spec.tag: entry.spec for entry in managed.entries}
    specs = [replace(spec, env_id=number) for number, spec in enumerate(by_tag.values())]
    cluster = RayCluster(settings.ray, settings.start_method, ["numpy"], settings.startup_timeout)
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
"""Runs the command. Exit codes: 0 where all nodes can be used, 1 where one cannot or there is no such cluster, 2 for a
configuration that cannot work."""


def _show(reports: Sequence[NodeReport], tags: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS)
    for report in reports:
        table.add_row(*_cells(report))
    Console(width=_WIDTH).print(table)
    sound = sum(report.is_sound for report in reports)
    plural = "s" if len(reports) > 1 else ""
    print(f"{sound} of {len(reports)} node{plural} can play {', '.join(tags)}.")
    for line in lines_of(reports):
        print(line)


def _cells(report: NodeReport) -> Iterator[str]:
    yield report.node.name
    yield report.node.address
    yield "yes" if report.is_reached else "NO"
    yield "DIFFER" if report.differences else "equal" if report.is_reached else "?"
    yield "MISSING" if report.missing else "?" if report.why else "found"
    yield "NONE" if report.why and report.is_reached else str(report.seats or "NO ROOM")
    yield f"{1e3 * report.round_trip_s:.1f} ms" if report.round_trip_s is not None else "?"
    yield f"{report.skew_s:+.2f} s" if report.skew_s is not None else "?"


def lines_of(reports: Sequence[NodeReport]) -> Iterator[str]:
    """What is wrong with nodes, and what should be known of the cluster, a line each."""
    for report in reports:
        name = f"node {report.node.name}"
        if report.why:
            yield f"{name}: {report.why}"
        if report.differences and not report.why:
            yield f"{name}: has {', '.join(report.differences)}; install the same version there"
        for tag, why in report.missing.items():
            yield f"{name}: tag {tag}: {why}"
        if not report.seats:
            yield f"{name}: has no room for a lane now (es_manager.ray.num_cpus and .resources say what each claims)"
        if report.skew_s is not None and abs(report.skew_s) > FAR_OFF:
            way = "ahead" if report.skew_s > 0 else "behind"
            yield f"{name}: its clock is {abs(report.skew_s):.1f} s {way}; lanes do not mind, who reads logs will"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        yield (
            "cluster: this process was asked for no token (RAY_AUTH_MODE is not token): whoever reaches the ports of a "
            "cluster without one may run code on it. See docs/several_machines.md."
        )
