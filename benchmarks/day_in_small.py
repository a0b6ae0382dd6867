"""A day in small: episodes on the nodes of a Ray cluster of this machine, with something lost all the time.

``python benchmarks/day_in_small.py [--minutes 30] [--every 2] [--nodes 3] [--seed 0]`` starts a cluster, plays episode
after episode on it, and every two seconds or so does one of these to a node that a seed draws:

    worker       a lane's worker is killed             node           its raylet is killed, and another node joins
    supervisor   what starts its workers is killed     stop and go    a worker, the agent with all its workers, or the
    agent        the actor of its agent is killed                     whole node stands still for a moment
                                                       silence        the whole node stands still until Ray gives it up

Each episode is played in the main process too, and all that both managers show is compared without tolerance. Once a
minute a line tells how far it is. In the end one line sums up. Exit code 1: a rollout differed, an episode took longer
than two minutes, the main process's memory grew by more than 5 % after the first five minutes (or the first half of a
shorter run), or a process was left behind.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import multiprocessing
import os
import random
import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from ragen.errors import RagenError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.equivalence import record_episode
from ragen.llm_agent.testing.random_player import RandomPlayer

sys.path.append(str(Path(__file__).resolve().parents[1] / "engine" / "tests"))
from support.local_cluster import LocalCluster

TURNS = 8
GROUPS, GROUP_SIZE = 2, 2  # of each tag
LONGEST_EPISODE = 120.0  # seconds; all deadlines of an episode together are less
WARM_UP = 5.0  # minutes until memory is to be flat
GROWTH = 0.05  # that still counts as flat
SILENCE = 6.0  # seconds after which Ray gives up a node of this cluster
SHORT_STOP, LONG_STOP = (0.2, 2.0), 2 * SILENCE
REST = 5.0  # seconds between attempts to start a node
GONE = 10.0  # seconds after which nothing of a closed manager may be there
MARK = "RAGEN_DAY_IN_SMALL"  # environment variable of all that is started here
TAGS: dict[str, dict[str, Any]] = {
    "Lake": {"env_type": "frozen_lake"},
    "Sokoban": {"env_type": "sokoban", "env_config": {"dim_room": [6, 6], "num_boxes": 1}},
    "Bandit": {"env_type": "bandit"},
    "Countdown": {"env_type": "countdown"},
    "Waits": {"env_type": "workload:Work", "env_config": {"wait": 0.02}},
    "Computes": {"env_type": "workload:Work", "env_config": {"loops": 100_000}},
}


def configuration(**es_manager: Any) -> dict[str, Any]:
    """Groups of every tag."""
    count = GROUPS * len(TAGS)
    envs = {"tags": list(TAGS), "n_groups": [GROUPS] * len(TAGS)}
    return {
        "custom_envs": {tag: {"max_actions_per_traj": 20, **entry} for tag, entry in TAGS.items()},
        "seed": {"train": 0},
        "es_manager": {
            "crash_report_dir": None,
            "train": {"env_groups": count, "group_size": GROUP_SIZE, "env_configs": envs},
            "step_timeout": 10,
            "reset_timeout": 20,
            "startup_timeout": 30,
            "max_restarts": 20,
            **es_manager,
        },
    }


class Room:
    """The cluster, in a process of its own, which disturbs its nodes and replaces those that are lost.

    Attributes:
        done: Count of each fault.
    """

    def __init__(self, cluster: LocalCluster, nodes: int, every: float, seed: int) -> None:
        """Disturb this cluster of so many nodes every so many seconds."""
        self.done: Counter[str] = Counter()
        self._cluster, self._nodes, self._every = cluster, nodes, every
        self._chance = random.Random(seed)
        self._rest = 0.0  # no node is started before
        self._stopped: list[tuple[float, list[psutil.Process]]] = []  # and when they are to go on
        self._kinds: dict[str, Callable[[psutil.Process], bool]] = {
            "worker": lambda raylet: self._kill(raylet, "envlanes worker"),
            "supervisor": lambda raylet: self._kill(raylet, "envlanes superviso"),
            "agent": lambda raylet: self._kill(raylet, "ray::NodeAgent"),
            "node": self._lose,
            "stop and go": self._stop_some,
            "silence": lambda raylet: self._stop([raylet, *_below(raylet)], LONG_STOP),
        }

    def work(self, over: Connection) -> None:
        """Disturb until something is said, or nobody is there any more."""
        due = time.monotonic() + self._every
        while not over.poll(max(0.0, min([due, *(when for when, _ in self._stopped)]) - time.monotonic())):
            self._go_on(time.monotonic())
            if time.monotonic() >= due:
                self._disturb()
                over.send(dict(self.done))
                due = max(time.monotonic(), due + self._every * self._chance.uniform(0.5, 1.5))
            self._replace()
        self._go_on(float("inf"))

    def _disturb(self) -> None:
        weights = [{"silence": 1, "node": 2}.get(kind, 4) for kind in self._kinds]
        kind = self._chance.choices(list(self._kinds), weights)[0]
        with suppress(psutil.NoSuchProcess, ValueError):  # it has ended meanwhile, or there is none
            raylet = psutil.Process(self._cluster.raylet_pid(self._chance.randrange(len(self._cluster.node_ids()))))
            self.done[kind] += self._kinds[kind](raylet)

    def _kill(self, raylet: psutil.Process, title: str) -> bool:
        found = [process for process in _below(raylet) if _title(process).startswith(title)]
        if found:
            self._chance.choice(found).kill()
        return bool(found)

    def _lose(self, raylet: psutil.Process) -> bool:
        raylet.kill()
        return True

    def _stop_some(self, raylet: psutil.Process) -> bool:
        kind = self._chance.choice(("worker", "agent", "node"))
        found = [raylet, *_below(raylet)]
        if kind != "node":
            title = {"worker": "envlanes worker", "agent": "ray::NodeAgent"}[kind]
            chosen = [process for process in found if _title(process).startswith(title)]
            if not chosen:
                return False
            first = self._chance.choice(chosen)
            found = [first, *_below(first)]
        return self._stop(found, self._chance.uniform(*SHORT_STOP))

    def _stop(self, processes: list[psutil.Process], seconds: float) -> bool:
        self._stopped.append((time.monotonic() + seconds, processes))
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        return True

    def _go_on(self, now: float) -> None:
        for when, processes in list(self._stopped):
            if when <= now:
                self._stopped.remove((when, processes))
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.resume()

    def _replace(self) -> None:
        """Start a node for each one whose raylet has ended."""
        for index in reversed(range(len(self._cluster.node_ids()))):
            if not _lives(self._cluster.raylet_pid(index)):
                self._cluster.remove_node(index)
        if time.monotonic() < self._rest:
            return
        try:
            while len(self._cluster.node_ids()) < self._nodes:
                self._cluster.add_node()
        except Exception as error:  # Ray has none of its own for a node that is not there in time
            self._rest = time.monotonic() + REST
            print(f"a node did not start: {error}", file=sys.stderr)


def room(main: Connection, nodes: int, every: float, seed: int) -> None:
    """The process of the cluster: tells its address, waits until it is told to disturb, and then until it is over."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), LocalCluster(nodes, silence=SILENCE) as cluster:
        main.send(cluster.address)
        with suppress(EOFError, OSError):  # main has gone
            main.recv()
            Room(cluster, nodes, every, seed).work(main)


def _below(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def _title(process: psutil.Process) -> str:
    try:
        name, line = process.name(), " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return name if name.startswith("envlanes ") else line


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left_behind() -> list[str]:
    """Processes of lanes that this program has started and that are still there, orphans too."""
    deadline = time.monotonic() + GONE
    while (found := list(_of_lanes())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _of_lanes() -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = process.environ().get(MARK) == os.environ[MARK]
            title = _title(process)
            if is_ours and title.startswith(("envlanes ", "ray::NodeAgent")):
                yield f"{process.pid} {title[:60]}"


class Memory:
    """The main process's resident memory over time."""

    def __init__(self, warm_up: float) -> None:
        """Judge what comes after so many seconds."""
        self._process, self._warm_up = psutil.Process(), warm_up
        self._seen: list[tuple[float, int]] = []

    def look(self, seconds: float) -> float:
        """Note how much it is, so many seconds after the start; in MB."""
        self._seen.append((seconds, self._process.memory_info().rss))
        return self._seen[-1][1] / 1e6

    def growth(self) -> tuple[float, float, float]:
        """Median MB just after the warm-up and at the end, each over a fifth of what follows it; and what was added."""
        judged = [amount for seconds, amount in self._seen if seconds >= self._warm_up] or [self._seen[-1][1]]
        count = max(1, len(judged) // 5)
        first, last = statistics.median(judged[:count]) / 1e6, statistics.median(judged[-count:]) / 1e6
        return first, last, last / first - 1


def main() -> int:
    """Play the day; the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--every", type=float, default=2.0, help="seconds from fault to fault, on average")
    arguments.add_argument("--nodes", type=int, default=3)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--verbose", action="store_true", help="show the engine's warnings")
    given = arguments.parse_args()
    os.environ[MARK] = str(os.getpid())
    os.environ["SPT_NOENV"] = "1"  # process titles leave the environment readable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    logging.getLogger("ragen").setLevel(logging.WARNING if given.verbose else logging.CRITICAL)
    here, there = multiprocessing.Pipe()
    arguments_of_room = (there, given.nodes, given.every, given.seed)
    process = multiprocessing.get_context("spawn").Process(target=room, args=arguments_of_room)
    process.start()
    there.close()
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # Ray tells of every node that it has lost
            return play(here, given)
    finally:
        here.close()
        process.join(60)
        process.kill()


def play(cluster: Connection, given: argparse.Namespace) -> int:
    """Play on the cluster at the other end, and say what came of it; the exit code."""
    memory = Memory(60 * min(WARM_UP, given.minutes / 2))
    settings = {"backend": "ray", "max_workers": 2 * given.nodes, "ray": {"address": cluster.recv()}}
    episodes, turns, restarts, told, longest, wrong = 0, 0, 0, 0, 0.0, ""
    faults: Counter[str] = Counter()
    with ExitStack() as stack:
        oracle = stack.enter_context(EnvStateManager(configuration(use_multiprocessing=False)))
        manager = stack.enter_context(EnvStateManager(configuration(use_multiprocessing=True, **settings)))
        start = time.monotonic()
        cluster.send("begin")
        while (seconds := time.monotonic() - start) < 60 * given.minutes and not wrong:
            seed = 1000 * given.seed + 100 * episodes
            expected = record_episode(oracle, RandomPlayer(seed), TURNS, seed)
            faulthandler.dump_traceback_later(LONGEST_EPISODE, exit=True)
            began = time.monotonic()
            try:
                got = record_episode(manager, RandomPlayer(seed), TURNS, seed)
                wrong = expected.first_difference(got)
            except RagenError as error:
                wrong = f"{type(error).__name__}: {error}"
            faulthandler.cancel_dump_traceback_later()
            longest = max(longest, time.monotonic() - began)
            while cluster.poll():
                faults = Counter(cluster.recv())  # an EOFError where nothing disturbs any more
            lanes = manager.lane_stats()
            turns, restarts, episodes = sum(lane.turns for lane in lanes), _restarts(lanes), episodes + 1
            megabytes = memory.look(seconds)
            if seconds >= 60 * told:
                told += 1
                line = f"{seconds / 60:5.1f} min  {episodes} episodes  {faults.total()} faults  {restarts} restarts"
                say(f"{line}  {lanes[0].turns} turns in main  {megabytes:.1f} MB")
        cluster.send("over")
    first, last, growth = memory.growth()
    left = left_behind()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    say(
        f"{seconds / 60:.1f} min, {given.nodes} nodes: {episodes} episodes, {turns} turns of environments, "
        f"{faults.total()} faults ({kinds}), {restarts} restarts of lanes; longest episode {longest:.1f} s; main "
        f"{first:.1f} MB after the warm-up, {last:.1f} MB in the end ({growth:+.1%}); left behind: "
        f"{', '.join(left) or 'nothing'}; {wrong or 'all rollouts equal to sequential'}"
    )
    return 1 if wrong or left or growth > GROWTH else 0


def say(line: str) -> None:
    """Print a line, whatever becomes of what others print."""
    print(line, file=sys.__stdout__, flush=True)


def _restarts(lanes: Any) -> int:
    return sum(lane.restarts for lane in lanes)


if __name__ == "__main__":
    sys.exit(main())
