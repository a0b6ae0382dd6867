"""The main process's side of 1,000 to 100,000 environments, whose lanes answer at once and play nothing.

``python benchmarks/simulate_scale.py [--envs 1000 10000 100000] [--in-a-lane 64] [--turns 5] [--shards 1]`` steps an
``EnvStateManager`` over lanes of :mod:`echo_lanes`: real sockets, messages of the usual size, and a few processes that
answer them. It prints what a turn costs the main process's processor for each environment, and for what; how long a
turn and a reset take; and what main keeps in memory for each environment after those turns.

With ``--shards 4`` so many processes have a manager each, with their share of the environments, and step at the same
time: what a plan with a manager a node comes to. They share this machine's processors; where each has its own, the
turn takes what the slowest shard's main and lanes take.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
PARTS = ("pack and send", "receive and unpack", "journals", "histories", "the rest")


class Watched:
    """Processor time of this thread within some functions, not counting that of watched ones within."""

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[float] = []  # what watched functions within the present ones took

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count a function's time for a part."""
        watched = getattr(owner, name)

        def watching(*given: Any, **named: Any) -> Any:
            self._open.append(0.0)
            start = time.thread_time()
            try:
                return watched(*given, **named)
            finally:
                took = time.thread_time() - start
                self.seconds[part] += took - self._open.pop()
                if self._open:
                    self._open[-1] += took

        setattr(owner, name, watching)


def watched_parts() -> Watched:
    """Watch what a turn consists of; only functions that are called once a lane, or once a turn."""
    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.parallel.lanes.lane import Lane
    from ragen.parallel.row_round import RowRound, Rows

    watched = Watched()
    watched.watch(Lane, "begin", PARTS[0])
    watched.watch(Lane, "advance", PARTS[1])
    watched.watch(RowRound, "run", PARTS[4])
    watched.watch(Rows, "play_singly", PARTS[2])
    watched.watch(EnvStateManager, "_play", PARTS[3])
    return watched


def simulate(envs: int, in_a_lane: int, turns: int) -> dict[str, Any]:
    """Play so many turns; the figures, times in seconds and per turn."""
    from echo_lanes import traffic
    from workload import configuration, inputs

    from ragen.llm_agent.es_manager import EnvStateManager

    lanes = -(-envs // in_a_lane)
    config = configuration(
        envs, {}, 1, use_multiprocessing=True, backend="echo_lanes:EchoKind", max_workers=lanes, startup_timeout=300
    )
    watched, given = watched_parts(), inputs(envs)
    gc.collect()
    memory = psutil.Process().memory_info().rss
    with EnvStateManager(config) as manager:
        start = time.perf_counter()
        manager.reset()
        reset_s = time.perf_counter() - start
        manager.step(given)
        watched.seconds.clear()
        traffic.clear()
        times = []
        for _ in range(turns):
            start, main = time.perf_counter(), time.thread_time()
            manager.step(given)
            times.append((time.perf_counter() - start, time.thread_time() - main))
        kept = psutil.Process().memory_info().rss - memory
    turn_s = statistics.median(seconds for seconds, _ in times)
    main_s = statistics.mean(main for _, main in times)
    parts = {part: watched.seconds[part] / turns for part in PARTS}
    parts[PARTS[4]] += main_s - sum(parts.values())
    told = {name: traffic[name] / turns for name in ("messages", "bytes")}
    sizes = {"envs": envs, "lanes": lanes, "turns": turns, "kept_bytes": kept}
    return {**sizes, "reset_s": reset_s, "turn_s": turn_s, "main_s": main_s, "parts": parts, **told}


def shards(count: int, envs: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """What so many processes measure at the same time, each with its share."""
    call = [sys.executable, __file__, "--envs", str(envs // count), "--in-a-lane", str(given.in_a_lane), "--json"]
    call += ["--turns", str(given.turns)]
    processes = [subprocess.Popen(call, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [json.loads(process.communicate()[0]) for process in processes]


def row(figures: dict[str, Any], count: int = 1) -> str:
    """A line of the table; several shards by their slowest."""
    envs = figures["envs"]
    cells = [
        f"{count * envs:,}" if count == 1 else f"{count} x {envs:,}",
        f"{count * figures['lanes']:,}",
        f"{1e6 * figures['main_s'] / envs:.1f}",
        *(f"{1e6 * figures['parts'][part] / envs:.1f}" for part in PARTS),
        f"{figures['turn_s']:.2f}",
        f"{figures['reset_s']:.1f}",
        f"{figures['bytes'] / envs:.0f}",
        f"{figures['messages'] / figures['lanes']:.0f}",
        f"{figures['kept_bytes'] / envs / 1e3:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--in-a-lane", type=int, default=64, help="environments")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--shards", type=int, default=1, help="processes with a manager each")
    parser.add_argument("--json", action="store_true", help="the figures of one size as JSON")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE.parent))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for each lane
    if given.json:
        print(json.dumps(simulate(given.envs[0], given.in_a_lane, given.turns)))
        return
    own = "main, us per environment", *(f"{part}, us" for part in PARTS)
    columns = "environments", "lanes", *own, "turn, s", "reset, s", "bytes each", "messages a lane", "kB each"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for envs in given.envs:
        found = shards(given.shards, envs, given)  # in a process of their own, so that each size begins alike
        print(row(max(found, key=lambda figures: figures["turn_s"]), given.shards), flush=True)


if __name__ == "__main__":
    main()
