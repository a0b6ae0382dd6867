"""Plays episodes in workers that are killed about every second, and compares each with the environment played alone.

``python benchmarks/heavy_kills.py --env textworld --episodes 1000 [--config '{"games": 8}'] [--seconds 600]``

In each round, bare environments first play an episode in this process with their own ``example_action``. Then an
``EnvStateManager`` plays the same actions in workers, and a random worker is killed about every ``--every`` seconds, at
a random moment but at most once per turn, since an environment that loses its worker twice in one turn is given up.
Observations, rewards, infos and ends must be equal. At the end the script prints the processes and temporary files that
are left behind, and the memory used over the rounds. The exit code is 1 if anything differs or is left behind.

``--seeds 32 --turns 4`` makes a long run of an expensive environment affordable: it repeats 32 different episodes of at
most four turns, each of which is played alone only once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from envlanes.resources import close_resources, temporary_folder
from ragen.env.registry import resolve_env
from ragen.llm_agent.es_manager import EnvStateManager

MARK = "RAGEN_HEAVY_KILLS"
GONE_WITHIN = 30.0  # seconds for processes to end after close()

Episode = list[Any]


def main() -> int:
    """Play, compare, and look for leftovers."""
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="heavy-kills-") as folder:
        os.environ[MARK], os.environ["TMPDIR"] = f"{os.getpid()}-{time.time_ns()}", folder
        tempfile.tempdir = folder
        is_sound = run(given)
        left = leftover_processes()
        close_resources()
        files = sorted(set(map(str, Path(folder).iterdir())) - {str(temporary_folder())})
    print(f"left behind: processes {left or 'none'}, files {files or 'none'}")
    return 0 if is_sound and not left and not files else 1


def run(given: argparse.Namespace) -> bool:
    """Play all rounds; returns whether all episodes were equal and at least one worker was killed."""
    began, played, unequal = time.monotonic(), 0, 0
    memory: list[float] = []
    alone: dict[int, Episode] = {}  # episodes to repeat, by seed
    with EnvStateManager(configuration(given)) as manager:
        bare = [made(given) for _ in range(given.envs)]
        killer = Killer(manager, given.every, given.seed)
        while played < given.episodes and time.monotonic() - began < given.seconds:
            seed = given.seed + (played % given.seeds if given.seeds else played)
            expected = [
                alone.get(seed + number) or play(env, seed + number, given.turns) for number, env in enumerate(bare)
            ]
            if given.seeds:
                alone.update(enumerate(expected, seed))
            found = played_in_workers(manager, seed, expected, killer)
            for number, (one, other) in enumerate(zip(expected, found, strict=True)):
                unequal += differs(given.env, seed + number, one, other)
            played += given.envs
            memory.append(resident())
            if len(memory) % 10 == 1:
                note = f"{played} episodes, {killer.kills} kills, {unequal} unequal, {memory[-1]:.0f} MB"
                print(note, file=sys.stderr, flush=True)
        for env in bare:
            getattr(env, "close", lambda: None)()
        restarts = sum(lane.restarts for lane in manager.lane_stats())
    took = time.monotonic() - began
    print(f"{given.env}: {played} episodes in {took:.0f} s, {killer.kills} workers killed, {restarts} replaced")
    print(f"unequal: {unequal}")
    print(f"memory of all processes, MB: {flatness(memory)}")
    return not unequal and killer.kills > 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="an environment type")
    parser.add_argument("--config", type=json.loads, default=None, help="its env_config, as JSON")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0, help="start no round after this time")
    parser.add_argument("--envs", type=int, default=8, help="number of environments")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=10, help="maximum number per episode")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two kills, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seeds", type=int, default=0, help="number of different episodes, a multiple of --envs; 0: all differ"
    )
    given = parser.parse_args()
    if given.seeds % given.envs:
        parser.error(f"--seeds is {given.seeds}; expected a multiple of --envs, which is {given.envs}")
    return given


def configuration(given: argparse.Namespace) -> dict[str, Any]:
    """The configuration of a manager with all environments in workers."""
    part = {"env_groups": given.envs, "group_size": 1, "env_configs": {"tags": ["Kills"], "n_groups": [given.envs]}}
    settings = {
        "use_multiprocessing": True,
        "max_workers": given.workers,
        "max_restarts": 10**6,
        "step_timeout": 300,
        "reset_timeout": 600,
        "startup_timeout": 300,
        "on_env_failure": "raise",
        "crash_report_dir": None,
    }
    kind = {"env_type": given.env, "env_config": given.config, "max_actions_per_traj": given.turns}
    return {
        "es_manager": {**settings, "train": part, "val": part},
        "custom_envs": {"Kills": kind},
        "seed": {"train": given.seed, "val": given.seed},
    }


def made(given: argparse.Namespace) -> Any:
    """A bare environment."""
    env_class, config_class = resolve_env(given.env)
    return env_class(config_class(**(given.config or {}))) if config_class else env_class()


def play(env: Any, seed: int, turns: int) -> Episode:
    """Play an episode; returns the first observation, then action, reward, info and observation of each turn."""
    rng = random.Random(seed)
    env.reset(seed, "train")
    episode: Episode = [env.render()]
    for _ in range(turns):
        action = env.example_action(rng)
        _, reward, done, info = env.step(action)
        episode.append((action, reward, info, env.render()))
        if done:
            break
    return episode


def played_in_workers(
    manager: EnvStateManager, seed: int, expected: Sequence[Episode], killer: Killer
) -> list[Episode]:
    """Play the same actions in the manager; returns episodes in the same form."""
    with killer.at_large():
        active = manager.reset(seed)
        for turn in range(1, max(map(len, expected))):
            said = [cache["env_id"] for cache in active if turn < len(expected[cache["env_id"]])]
            if not said:
                break
            killer.may_kill.set()
            active = manager.step(
                [
                    {"env_id": each, "actions": [expected[each][turn][0]], "llm_response": "", "llm_raw_response": ""}
                    for each in said
                ]
            )
        states = manager.get_rollout_states()
    found = []
    for state in states:
        turns = state["history"]
        episode: Episode = [turns[0]["state"]]
        for turn, following in itertools.pairwise(turns):
            episode.append((turn["actions"][0], turn["reward"], turn["info"], following["state"]))
        found.append(episode)
    return found


def differs(env_type: str, seed: int, expected: Episode, found: Episode) -> int:
    """Print the first difference between two episodes; returns 1 if there is one, else 0."""
    if expected[0] != found[0] or len(expected) != len(found):
        print(f"{env_type}, seed {seed}: different beginning or length\n{expected[0]}\n{found[0]}")
        return 1
    for number, (one, other) in enumerate(zip(expected[1:], found[1:], strict=True), 1):
        info = {key: other[2].get(key) for key in one[2]}
        if (one[0], one[1], one[2], one[3]) != (other[0], other[1], info, other[3]):
            print(f"{env_type}, seed {seed}, turn {number}:\n{one}\n{other}")
            return 1
    return 0


class Killer:
    """Kills random workers.

    Attributes:
        kills: Number of workers killed so far.
        may_kill: Set at the beginning of a turn, cleared by a kill.
    """

    def __init__(self, manager: EnvStateManager, every: float, seed: int) -> None:
        self.kills = 0
        self.may_kill = threading.Event()
        self._manager, self._every, self._rng = manager, every, random.Random(seed)
        self._next = time.monotonic() + every * self._rng.uniform(0.5, 1.5)

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """Kill workers while the block runs."""
        over = threading.Event()
        self.may_kill.set()
        thread = threading.Thread(target=self._run, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _run(self, over: threading.Event) -> None:
        while not over.wait(max(0.005, min(0.05, self._next - time.monotonic()))):
            if time.monotonic() < self._next or not self.may_kill.is_set():
                continue
            pids = [lane.pid for lane in self._manager.lane_stats() if lane.lane != "main" and lane.pid]
            if not pids:
                continue
            self.may_kill.clear()
            try:
                os.kill(self._rng.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.kills += 1
            self._next = time.monotonic() + self._every * self._rng.uniform(0.5, 1.5)


def family() -> list[psutil.Process]:
    """All descendants of this process, including those whose parents have ended."""
    found = {each.pid: each for each in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == os.environ[MARK]:
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue
    return list(found.values())


def resident() -> float:
    """Memory of this process and all its descendants in MB; shared memory is counted once."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            memory = process.memory_full_info()
        except (psutil.Error, OSError):
            continue
        total += getattr(memory, "pss", memory.rss)
    return total / 1e6


def leftover_processes() -> list[str]:
    """Processes that still exist a while after the manager was closed, except Python's own servers."""
    deadline = time.monotonic() + GONE_WITHIN
    while (left := [told for each in family() if (told := description(each))]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def description(process: psutil.Process) -> str:
    """The id and command of a process; "" if it has ended or is a server that Python keeps until exit."""
    try:
        command = " ".join(process.cmdline())
        if process.status() == psutil.STATUS_ZOMBIE and not command:
            return f"{process.pid} (zombie)"
    except psutil.Error:
        return ""
    kept = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
    return "" if any(name in command for name in kept) else f"{process.pid} {command[:80]}"


def flatness(memory: Sequence[float]) -> str:
    """Median memory in the second tenth of the rounds and in the last, and the maximum."""
    if len(memory) < 10:
        return ", ".join(f"{value:.0f}" for value in memory)
    tenth = len(memory) // 10
    early, late = sorted(memory[tenth : 2 * tenth + 1]), sorted(memory[-tenth:])
    return f"{early[len(early) // 2]:.0f} early, {late[len(late) // 2]:.0f} late, {max(memory):.0f} at most"


if __name__ == "__main__":
    sys.exit(main())
