"""Heavy environments: sequential, in workers, `auto`, and as RAGEN steps them, compared turn by turn in one run.

``python benchmarks/bench_heavy.py [--only code,search] [--workers 2] [--turns 20] [--seconds 30] [--png FILE]``

All contenders play the same episodes: the actions of a turn are chosen once, outside the measured time, and every
contender plays them before the next turn begins, in a different order each turn. Two short episodes precede the
measured one, as in a training. Figures are medians over turns. ``RAGEN, loop`` steps bare environments one after the
other, as RAGEN's manager does; ``RAGEN, threads`` steps them in a pool of 32 threads, for environments to which RAGEN's
configuration gives one. Neither checks, records or recovers. Afterwards a worker of ``true`` is killed before each of
three turns, on purpose; recovery is the time of such a turn, in usual turns. At the end all rollouts must be equal.

``attainable`` is the highest possible speed-up: as many processes as workers, all busy without a pause with the work of
a sequential turn. How much faster that many processes compute together than one does is measured beside every turn, and
printed: processors that share a core, a cache, or a machine with others give less than their number. ``attainable`` is
lower if a turn already uses several processors, as a browser's processes do, and higher if a turn waits. ``processor
time`` is that of all processes per turn, relative to sequential: it shows what workers add to the work.

If the kernel groups processes by session (``/proc/sys/kernel/sched_autogroup_enabled``), workers get larger shares of a
busy machine, so run this on an idle one. It prints the table of docs/how_much_faster.md and the rows of the README's,
and draws a plot if ``--png`` is given (``pip install matplotlib``). An environment that cannot be created here is left
out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import psutil

from ragen.env import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS
from ragen.errors import RagenError, counted, did_you_mean
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.equivalence import Recording

KNOWN, WARM_UP, KILLS, MOST = 2, 3, 3, 10_000  # episodes before the measured one, and their turns; kills; max turns
WORKERS = 2
THREADS = 32  # of RAGEN's pool
COUNTED = 1_000_000  # numbers that a process adds up, in about 20 ms, to show how fast it computes
GROUP = 4


def example(env: Any, rng: Random) -> str:
    """The environment's own example action."""
    return str(env.example_action(rng))


def wrong_program(env: Any, rng: Random) -> str:
    """A program that runs all tests and fails most, so the episode continues."""
    name = env.problem.name or "f"
    return f"def {name}(*args):\n    total = sum(range({rng.randrange(50_000)}))\n    return total if args else None"


def command(env: Any, rng: Random) -> str:
    """A command that looks around or makes a small change."""
    looks = ["ls -la", "find . -type f | sort | head -n 5", "cat * 2>&1 | wc -c", "grep -rl a . | wc -l"]
    return rng.choice([*looks, f"echo {rng.random()} >> notes.txt"])


def query(env: Any, rng: Random) -> str:
    """A search for words of the question or the observation."""
    words = [word for word in f"{env.question.text} {env.observation}".split() if word.isalpha() and len(word) > 3]
    return f"search[{' '.join(rng.sample(words, min(4, len(words))))}]"


def keys(env: Any, rng: Random) -> str:
    """Types a short text into a field and submits nothing, so the episode continues."""
    fields = [line for line in env.observation.splitlines() if " input text" in line or " input password" in line]
    return f"type[{rng.choice(fields)[1:].partition(']')[0]}|{rng.randrange(1000)}]"


@dataclass
class Heavy:
    """An environment to measure.

    Attributes:
        env_type: Its type.
        action: Chooses an action, given the environment and a generator.
        config: Its ``env_config``.
        envs: Number of environments.
        threads: Whether RAGEN's configuration gives it a thread pool.
        workers: Number of workers.
    """

    env_type: str
    action: Callable[[Any, Random], str] = example
    config: dict[str, Any] = field(default_factory=dict)
    envs: int = 32
    threads: bool = False
    workers: int = WORKERS


ENVIRONMENTS = {
    "code": Heavy("code", wrong_program, {"max_tries": MOST}, threads=True),
    "terminal": Heavy("terminal", command, {"max_steps": MOST}),
    "search": Heavy("search", query, {"max_steps": MOST, "entities": 5_000}, threads=True),
    "textworld": Heavy("textworld"),
    "alfworld": Heavy("alfworld"),
    "miniwob": Heavy(
        "miniwob", keys, {"tasks": ["login-user", "enter-text", "use-autocomplete"], "max_steps": MOST}, 8
    ),
}
"""The environments to measure."""


# Contenders


class Ours:
    """``EnvStateManager``."""

    def __init__(self, heavy: Heavy, mode: Any) -> None:
        """Create the manager, and reset."""
        part = {"env_groups": heavy.envs // GROUP, "group_size": GROUP}
        part["env_configs"] = {"tags": ["Heavy"], "n_groups": [heavy.envs // GROUP]}
        entry = {"env_type": heavy.env_type, "env_config": heavy.config, "max_actions_per_traj": MOST}
        settings = {"train": part, "use_multiprocessing": mode, "max_workers": heavy.workers}
        self._manager = EnvStateManager({"seed": {"train": 3}, "custom_envs": {"Heavy": entry}, "es_manager": settings})
        self.reset()

    def reset(self) -> None:
        """Begin the same episodes anew."""
        self._manager.reset(seed=3)
        self.seeds = [entry["status"].seed for entry in self._manager.envs]

    def step(self, actions: dict[int, str]) -> None:
        """Play a turn."""
        self._manager.step(
            [
                {"env_id": env_id, "actions": [action], "llm_response": action, "llm_raw_response": action}
                for env_id, action in actions.items()
            ]
        )

    def kill(self, number: int) -> bool:
        """Kill a worker; returns whether there is one."""
        pids = [stats.pid for stats in self._manager.lane_stats()[1:] if stats.pid]
        if pids:
            os.kill(pids[number % len(pids)], signal.SIGKILL)
        return bool(pids)

    def rollout(self) -> list[list[tuple[Any, Any]]]:
        """States and rewards of all environments."""
        return [
            [(entry["state"], entry.get("reward")) for entry in cache["history"]]
            for cache in self._manager.rollout_cache
        ]

    def whole(self) -> Any:
        """The rollout states."""
        return self._manager.get_rollout_states()

    def close(self) -> None:
        """Close the manager."""
        self._manager.close()


class Bare:
    """Bare environments, as RAGEN's manager steps them."""

    def __init__(self, heavy: Heavy, seeds: list[int], threads: int = 0) -> None:
        """Create and reset them."""
        config_class = REGISTERED_ENV_CONFIGS[heavy.env_type]
        self.envs = [REGISTERED_ENVS[heavy.env_type](config_class(**heavy.config)) for _ in seeds]
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._seeds = seeds
        self.reset()

    def reset(self) -> None:
        """Begin the same episodes anew."""
        self._shown: list[list[tuple[Any, Any]]] = []
        self.alive = set(range(len(self.envs)))
        for env, seed in zip(self.envs, self._seeds, strict=True):
            env.reset(seed, mode="train")
            self._shown.append([(env.render(), None)])

    def step(self, actions: dict[int, str]) -> None:
        """Play a turn."""
        played = (self._pool.map if self._pool else map)(self._play, actions.items())
        for env_id, (state, reward, done) in zip(actions, played, strict=True):
            self._shown[env_id][-1] = (self._shown[env_id][-1][0], reward)
            self._shown[env_id].append((state, None))
            if done:
                self.alive.discard(env_id)

    def _play(self, asked: tuple[int, str]) -> tuple[Any, float, bool]:
        env = self.envs[asked[0]]
        _, reward, done, _ = env.step(asked[1])
        return env.render(), reward, done

    def rollout(self) -> list[list[tuple[Any, Any]]]:
        """States and rewards of all environments."""
        return self._shown

    def close(self) -> None:
        """Close them."""
        if self._pool:
            self._pool.shutdown()
        for env in self.envs:
            env.close()


# Measuring


class Processors:
    """Processes that only compute, to measure how much faster than one several of them are on this machine."""

    def __init__(self, number: int) -> None:
        """Start them."""
        self._each = [ProcessPoolExecutor(1) for _ in range(number)]
        self.measure()

    def measure(self) -> float:
        """Their speed together, relative to one after the other."""
        start = time.perf_counter()
        for _ in self._each:
            self._each[0].submit(sum, range(COUNTED)).result()
        alone, start = time.perf_counter() - start, time.perf_counter()
        wait([each.submit(sum, range(COUNTED)) for each in self._each])
        return alone / (time.perf_counter() - start)

    def close(self) -> None:
        """End them."""
        for each in self._each:
            each.shutdown()


@dataclass
class Result:
    """The measurements of one environment.

    Attributes:
        name: Its name.
        envs: Number of environments.
        workers: Number of workers.
        turns: Seconds of each turn, by contender.
        computed: Processor time of the same turns in seconds, of this process and all its descendants.
        kills: Seconds of the turns with a kill.
        equal: Whether all contenders produced equal rollouts.
        processors: Speedup of as many processes as workers over one, beside each turn.
    """

    name: str
    envs: int
    workers: int
    turns: dict[str, list[float]]
    computed: dict[str, list[float]]
    kills: list[float]
    equal: bool
    processors: list[float]

    def median(self, contender: str) -> float:
        """Median seconds of a turn."""
        return statistics.median(self.turns[contender])

    def speed_up(self, contender: str) -> float:
        """Times as fast as sequential, the median over turns."""
        pairs = zip(self.turns["sequential"], self.turns[contender], strict=True)
        return statistics.median(sequential / own for sequential, own in pairs)

    def attainable(self) -> float:
        """The speed-up of processors that are never idle and do only the work of sequential turns."""
        return statistics.median(self.processors) * sum(self.turns["sequential"]) / sum(self.computed["sequential"])

    def work(self, contender: str) -> float:
        """Processor time relative to sequential."""
        return sum(self.computed[contender]) / sum(self.computed["sequential"])

    def recovery(self) -> float | None:
        """The time of a turn with a kill, in usual turns; None without kills."""
        return statistics.median(self.kills) / self.median("true") if self.kills else None


def workers_of(heavy: Heavy) -> int:
    """Number of workers that can compute at the same time."""
    return min(heavy.workers, heavy.envs, len(os.sched_getaffinity(0)))


def measure(name: str, heavy: Heavy, turns: int, seconds: float) -> Result:
    """Measure all contenders in one episode, then in turns with kills."""
    contenders: dict[str, Any] = {}
    machine = Processors(workers_of(heavy))
    try:
        for mode_name, mode in (("sequential", False), ("true", True), ("auto", "auto")):
            contenders[mode_name] = Ours(heavy, mode)
        seeds = contenders["sequential"].seeds
        contenders["RAGEN, loop"] = leader = Bare(heavy, seeds)
        if heavy.threads:
            contenders["RAGEN, threads"] = Bare(heavy, seeds, THREADS)
        taken: dict[str, list[float]] = {each: [] for each in contenders}
        computed: dict[str, list[float]] = {each: [] for each in contenders}
        processors: list[float] = []
        rng, number = Random(name), 0
        for _ in range(KNOWN):
            for first in range(WARM_UP):
                play(contenders, leader, heavy, rng, first)
            for contender in contenders.values():
                contender.reset()
        deadline = time.perf_counter() + seconds
        while leader.alive and number < turns and (number < 3 or time.perf_counter() < deadline):
            for each, (seconds_taken, processor_time) in play(contenders, leader, heavy, rng, number).items():
                taken[each].append(seconds_taken)
                computed[each].append(processor_time)
            processors.append(machine.measure())
            number += 1
        kills = []
        if leader.alive:
            print(f"{name}: measured; now a worker is killed on purpose before each of {KILLS} turns", flush=True)
        for kill in range(KILLS):
            if leader.alive and contenders["true"].kill(kill):
                kills.append(play(contenders, leader, heavy, rng, number + kill)["true"][0])
        return Result(name, heavy.envs, heavy.workers, taken, computed, kills, all_equal(contenders), processors)
    finally:
        machine.close()
        for contender in contenders.values():
            contender.close()


def play(
    contenders: dict[str, Any], leader: Bare, heavy: Heavy, rng: Random, number: int
) -> dict[str, tuple[float, float]]:
    """Play a turn with each contender; returns its seconds and its seconds of processor time."""
    actions = {env_id: heavy.action(leader.envs[env_id], rng) for env_id in sorted(leader.alive)}
    names = list(contenders)
    taken = {}
    for each in names[number % len(names) :] + names[: number % len(names)]:
        computed, start = processor_time(), time.perf_counter()
        contenders[each].step(actions)
        taken[each] = time.perf_counter() - start, processor_time() - computed
    return taken


def processor_time() -> float:
    """Processor seconds of this process and all its descendants, including ended ones.

    The kernel counts those of other processes in steps of 10 ms, which a cheap turn does not fill.
    """
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])  # user, system, and those of its children
        except psutil.Error:
            continue
    return total


def all_equal(contenders: dict[str, Any]) -> bool:
    """Whether states, rewards and everything that a manager records are equal."""
    played = [contender.rollout() for contender in contenders.values()]
    recorded = []
    for contender in contenders.values():
        if isinstance(contender, Ours):
            recorded.append(Recording())
            recorded[-1].note("rollouts", contender.whole())
    return all(each == played[0] for each in played) and not any(
        recorded[0].first_difference(other) for other in recorded[1:]
    )


# Showing


def table(results: list[Result]) -> str:
    """The table of docs/how_much_faster.md."""
    shown = ("true", "auto", "RAGEN, loop", "RAGEN, threads")
    lines = [
        "| environment | environments | ms a turn, sequential | `true` | `auto` | RAGEN's loop | RAGEN's threads "
        "| attainable | recovery after a kill, in usual turns |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        speed_ups = [f"{result.speed_up(each):.2f}" if each in result.turns else "" for each in shown]
        recovery = result.recovery()
        cells = [f"`{result.name}`", f"{result.envs}", f"{1e3 * result.median('sequential'):.0f}", *speed_ups]
        cells += [f"{result.attainable():.2f}", "" if recovery is None else f"{recovery:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(results: list[Result], path: Path) -> None:
    """Draw the speed-up of every contender: a group of bars for each environment."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"true": "tab:green", "auto": "limegreen", "RAGEN, loop": "tab:grey", "RAGEN, threads": "silver"}
    figure, axis = plt.subplots(figsize=(1.6 + 1.5 * len(results), 3.4))
    width = 0.2
    for place, result in enumerate(results):
        shown = [each for each in colours if each in result.turns]
        for bar, each in enumerate(shown):
            left, height = place + (bar - (len(shown) - 1) / 2) * width, result.speed_up(each)
            axis.bar(left, height, width * 0.95, color=colours[each])
            axis.text(left, height + 0.02, f"{height:.2f}", ha="center", va="bottom", fontsize=7)
        axis.hlines(result.attainable(), place - 0.45, place + 0.45, colors="black", linestyles="dotted", linewidth=1)
    axis.axhline(1.0, color="black", linewidth=0.8)
    labels = [f"{result.name}, {result.envs}\n{result.median('sequential') * 1e3:.0f} ms" for result in results]
    axis.set_xticks(range(len(results)), labels, fontsize=8)
    axis.set_ylabel("times as fast as sequential", fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    highest = max(max(result.attainable(), *map(result.speed_up, result.turns)) for result in results)
    axis.set_ylim(0, max(2.1, 1.12 * highest))
    dotted = plt.Line2D([], [], color="black", linestyle="dotted", linewidth=1)
    handles = [*[plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()], dotted]
    axis.legend(
        handles,
        [*colours, "attainable"],
        ncols=5,
        fontsize=7,
        loc="upper center",
        bbox_to_anchor=(0.5, 1.13),
        frameon=False,
    )
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def missing(heavy: Heavy) -> str | None:
    """The reason why an environment cannot be created here; None if it can."""
    if heavy.env_type not in REGISTERED_ENVS:
        return f"there is no environment type {heavy.env_type!r}"
    try:
        config = REGISTERED_ENV_CONFIGS[heavy.env_type](**heavy.config)
        REGISTERED_ENVS[heavy.env_type](config).close()
    except RagenError as error:
        return str(error)
    return None


def checked(reader: argparse.ArgumentParser) -> argparse.Namespace:
    """The options; ends the program with 2 where one cannot be followed, before anything is measured."""
    given = reader.parse_args()
    for name in given.only.split(","):
        if name not in ENVIRONMENTS:
            hint = did_you_mean(name, ENVIRONMENTS)
            reader.error(f"--only: there is no environment {name!r}; expected some of {', '.join(ENVIRONMENTS)}.{hint}")
    if given.envs is not None and (given.envs < GROUP or given.envs % GROUP):
        reader.error(f"--envs is {given.envs}; expected a multiple of {GROUP}: groups have {GROUP} members.")
    for option in ("workers", "turns"):
        if (number := getattr(given, option)) < 1:
            reader.error(f"--{option} is {number}; expected at least 1.")
    if given.png and find_spec("matplotlib") is None:
        reader.error("--png needs matplotlib, which is not installed: pip install matplotlib, or leave --png out.")
    return given


def main() -> int:
    """Measure, print, and draw where asked to; returns 1 if any rollouts differ."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", default=",".join(ENVIRONMENTS), help="comma-separated environments")
    reader.add_argument("--envs", type=int, help=f"number of each, a multiple of {GROUP}")
    reader.add_argument("--workers", type=int, default=WORKERS)
    reader.add_argument("--turns", type=int, default=20)
    reader.add_argument("--seconds", type=float, default=30.0, help="maximum seconds of turns per environment")
    reader.add_argument("--png", type=Path, metavar="FILE", help="draw a plot into this file; needs matplotlib")
    given = checked(reader)
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors", flush=True)
    autogroup = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if autogroup.exists() and autogroup.read_text().strip() == "1":
        print("processes are grouped by session (sched_autogroup_enabled): run this on an idle machine")
    results = []
    for name in given.only.split(","):
        heavy = ENVIRONMENTS[name]
        if reason := missing(heavy):
            print(f"{name}: left out: {reason}", flush=True)
            continue
        heavy.envs, heavy.workers = given.envs or heavy.envs, given.workers
        start = time.perf_counter()
        result = measure(name, heavy, given.turns, given.seconds)
        results.append(result)
        work = ", ".join(f"{each} {result.work(each):.2f}" for each in result.turns)
        verdict = "all rollouts are equal" if result.equal else "ROLLOUTS DIFFER"
        seconds = time.perf_counter() - start
        print(f"{name}: {verdict}; processor time: {work}; measured in {seconds:.0f} s", flush=True)
        together = statistics.median(result.processors)
        busy = counted(workers_of(heavy), "process", "processes")
        print(f"{name}: beside it, {busy} computed {together:.2f} times as fast as one", flush=True)
    if results:
        print(f"\n{table(results)}")
    if results and given.png:
        plot(results, given.png)
        print(f"plot in {given.png}")
    return 0 if all(result.equal for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
