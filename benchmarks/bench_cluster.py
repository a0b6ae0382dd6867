"""Environments on the nodes of a Ray cluster: what a turn of very many costs, beside plain Ray actors.

``python benchmarks/bench_cluster.py [--nodes 1 2 4] [--sizes 32 256 1024 4096] [--workloads wait10 wait50 overlap10
wait1000 compute1] [--lanes 64] [--overlapping-lanes 4] [--quick] [--json ROWS.json]`` starts a Ray cluster of so many
simulated nodes on this machine (a raylet each), plays, and prints one markdown table. All contenders of a setup live at
the same time and play a turn each, again and again, so that the ratios hold where the machine is busy with other things
as well. Workers have minutes to start; where one does not, the benchmark ends instead of timing something else.

Ideal is what a turn would take if nothing but the environments took time: waits of a lane's environments one after the
other (at the same time for ``overlap10`` and ``wait1000``, whose tags say ``overlap_waits``), computing shared by the
processors.
``main`` is the processor time of the main process, all of its threads, for each environment and turn, without what it
uses when nothing is played (Ray's threads).

``bare waits`` are as many processes as lanes, which wait as often (once, where waits overlap) and do nothing else: what
is above the ideal there is this machine's, not an engine's. ``ray, per core`` are as many actors as processors, which
wait in threads, as many at a time as our lanes do; ``ray, per env`` is an actor for each environment, up to
``--most-actors`` of them, and as long as there is memory for them.
``python benchmarks/cost_model.py ROWS.json`` fits a model to what ``--json`` wrote.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from cluster_contenders import ActorPerCore, ActorPerEnv, BareWaits, Contender, Lanes, Load, messages_counted
from cost_model import Setup
from workload import loops

ROOT = Path(__file__).resolve().parents[1]
ACTOR_MB, ROOM_MB = 80, 4000  # what an actor takes, and what is left to others
STORE = 80 << 20  # bytes of object store a node
COLUMNS = (
    *("nodes", "work", "environments", "lanes", "contender"),
    *("turns/s", "ms a turn", "/ ideal", "ms above it", "main, us", "bytes", "messages"),
)


def loads() -> dict[str, Load]:
    """What environments do, by name."""
    return {
        "wait10": Load(wait=0.010),
        "wait50": Load(wait=0.050),
        "overlap10": Load(wait=0.010, overlaps=True),
        "wait1000": Load(wait=1.0, overlaps=True),
        "compute1": Load(loops=loops(1000), compute=0.001),
    }


@contextmanager
def cluster(nodes: int, lanes: int) -> Iterator[list[str]]:
    """So many nodes with room for so many lanes each, beside a head without any; their ids."""
    import ray
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    try:
        ids = [made.add_node(num_cpus=lanes, object_store_memory=STORE).node_id for _ in range(nodes)]
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield ids
    finally:
        ray.shutdown()
        made.shutdown()


def measure(contenders: dict[str, Contender], seconds: float, most: int) -> dict[str, dict[str, float]]:
    """Play all in turns, for about so many seconds in all, but three times at least and so often at most."""
    for each in contenders.values():
        each.play()
    idle = idle_share()
    before = {name: (each.workers_s(), *each.traffic()) for name, each in contenders.items()}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    for done in range(most):
        if done >= 3 and time.perf_counter() > end:
            break
        for name, each in contenders.items():
            start, main = time.perf_counter(), time.process_time()
            each.play()
            took[name].append((time.perf_counter() - start, time.process_time() - main))
    found = {}
    for name, each in contenders.items():
        turns = len(took[name])
        after = (each.workers_s(), *each.traffic())
        lanes_s, messages, size = ((now - then) / turns for now, then in zip(after, before[name], strict=True))
        turn_s = statistics.median(seconds for seconds, _ in took[name])
        main_s = statistics.median(max(0.0, main - idle * seconds) for seconds, main in took[name])
        found[name] = {"turn_s": turn_s, "main_s": main_s, "lanes_s": lanes_s, "messages": messages, "bytes": size}
    return found


def idle_share(seconds: float = 0.5) -> float:
    """How much of a processor this process uses when nothing is played."""
    start = time.process_time()
    time.sleep(seconds)
    return (time.process_time() - start) / seconds


def contenders_of(load: Load, setup: Setup, nodes: list[str], lanes: int, most: int) -> Iterator[tuple[str, Contender]]:
    """Those that there is room for."""
    yield "lanes", Lanes(load, setup, len(nodes) * lanes)
    yield "ray, per core", ActorPerCore(load, setup, nodes)
    if load.wait:
        yield "bare waits", BareWaits(load, setup)
    room = (psutil.virtual_memory().available / 1e6 - ROOM_MB) / ACTOR_MB
    if setup.envs <= min(most, room):
        yield "ray, per env", ActorPerEnv(load, setup, nodes)


def row(nodes: int, name: str, setup: Setup, contender: str, ideal: float, found: dict[str, float]) -> str:
    """A line of the table."""
    turn_s = found["turn_s"]
    sent = [f"{found['bytes']:,.0f}", f"{found['messages']:.0f}"] if found["messages"] > 0 else ["", ""]
    cells = [
        f"{nodes}",
        name,
        f"{setup.envs:,}",
        f"{setup.lanes}",
        contender,
        f"{setup.envs / turn_s:,.0f}",
        f"{1e3 * turn_s:,.1f}",
        f"{turn_s / ideal:.2f}",
        f"{1e3 * (turn_s - ideal):,.1f}",
        f"{1e6 * found['main_s'] / setup.envs:,.1f}",
        *sent,
    ]
    return f"| {' | '.join(cells)} |"


def run(given: argparse.Namespace, nodes: int, rows: list[dict[str, Any]]) -> None:
    """All of one number of nodes."""
    known = loads()
    with cluster(nodes, given.lanes) as ids, messages_counted():
        most, places = nodes * given.lanes, (given.lanes, given.overlapping_lanes)
        keeper = Lanes(Load(), Setup(8, min(8, most)), most)  # has the workers stay from one setup to the next
        try:
            for name in given.workloads:
                for envs in given.sizes:
                    one_setup(given, ids, name, known[name], known[name].setup(envs, nodes, *places), rows)
        finally:
            keeper.close()


def one_setup(
    given: argparse.Namespace, ids: list[str], name: str, load: Load, setup: Setup, rows: list[dict[str, Any]]
) -> None:
    """Print the lines of one setup, and keep ours."""
    contenders: dict[str, Contender] = {}
    try:
        contenders.update(contenders_of(load, setup, ids, given.lanes, given.most_actors))
        found = measure(contenders, given.seconds, given.turns)
        for contender, each in found.items():
            print(row(len(ids), name, setup, contender, contenders[contender].ideal, each), flush=True)
        ours = found["lanes"]
        env_bytes = ours["bytes"] / setup.envs
        rows.append({"nodes": len(ids), "work": name, **asdict(setup), **ours, "env_bytes": env_bytes})
    finally:
        for each in contenders.values():
            with suppress(Exception):  # the others are to be ended too
                each.close()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 256, 1024, 4096])
    parser.add_argument("--workloads", nargs="+", choices=list(loads()), default=list(loads()))
    parser.add_argument("--lanes", type=int, default=64, help="of each node")
    parser.add_argument("--overlapping-lanes", type=int, default=4, help="of each node, where waits overlap")
    parser.add_argument("--most-actors", type=int, default=32, help="most actors of one environment each")
    parser.add_argument("--seconds", type=float, default=10.0, help="about, for each setup")
    parser.add_argument("--turns", type=int, default=15, help="of each contender at most")
    parser.add_argument("--quick", action="store_true", help="one node count, two sizes, few lanes: does it work?")
    parser.add_argument("--json", type=Path, help="where to write our figures for cost_model.py")
    given = parser.parse_args()
    if given.quick:
        given.nodes, given.sizes, given.lanes = [2], [8, 256], 8
        given.most_actors, given.seconds = 8, 2.0
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    sys.path.insert(0, str(ROOT))
    rows: list[dict[str, Any]] = []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for nodes in given.nodes:
        run(given, nodes, rows)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
