"""Vector environments side by side: gymnasium's, Stable-Baselines3's, tianshou's, PufferLib's and ours.

    python benchmarks/bench_vector.py                                          # a short table
    python benchmarks/bench_vector.py --quick                                  # some seconds
    python benchmarks/bench_vector.py --works cartpole wait10ms --envs 8 128 --workers 8

Each contender steps the same environments with the same actions. Contenders are alive at the same time and take turns,
so that a disturbance of the machine hits all of them; shown are the median and the least time of a vector step, the
median beside ``SyncVectorEnv``'s, what a step costs each environment above the bare work, and what starting takes in
seconds and memory. The bare work is a loop over environments that does nothing with what they give; for contenders with
processes it counts shared among so many as there are processors or workers, for waits as many as wait at a time.
Packages that are not installed are told, and left out; so are contenders with a process for each environment where
those are more than ``--most-processes``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from envlanes.gym import LaneVectorEnv


class Load(gymnasium.Env[np.ndarray, int]):
    """Computes for so long, waits for so long, and shows an array of a shape; its episodes do not end."""

    action_space = Discrete(2)

    def __init__(self, computes_s: float = 0.0, waits_s: float = 0.0, shape: tuple[int, ...] = (4,)) -> None:
        """Build it; an array of more than one axis is a picture."""
        self._computes_s, self._waits_s = computes_s, waits_s
        dtype, high = (np.uint8, 255) if len(shape) > 1 else (np.float32, 1)
        self.observation_space = Box(0, high, shape, dtype)
        self._shown = np.zeros(shape, dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin."""
        super().reset(seed=seed)
        return self._shown.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Work, and show the array with another first number."""
        end = time.thread_time() + self._computes_s
        while time.thread_time() < end:
            pass
        if self._waits_s:
            time.sleep(self._waits_s)
        shown = self._shown.copy()
        shown.flat[0] = action
        return shown, 1.0, False, False, {}


WORKS: dict[str, Callable[[], gymnasium.Env]] = {
    "cartpole": partial(gymnasium.make, "CartPole-v1"),
    "ant": partial(gymnasium.make, "Ant-v5"),
    "nothing": Load,
    "1ms": partial(Load, 1e-3),
    "wait10ms": partial(Load, 0.0, 10e-3),
    "picture84": partial(Load, 1e-4, 0.0, (84, 84, 4)),
}


class Bare:
    """The environments alone."""

    def __init__(self, fns: Sequence[Callable[[], gymnasium.Env]]) -> None:
        """Build them."""
        self._envs = [fn() for fn in fns]

    def reset(self) -> None:
        """Begin, each with its own seed."""
        self._over = [env.reset(seed=index) and False for index, env in enumerate(self._envs)]

    def step(self, actions: Sequence[Any]) -> None:
        """Step all, or reset those that are over."""
        for index, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            if self._over[index]:
                env.reset()
                self._over[index] = False
            else:
                _, _, terminated, truncated, _ = env.step(action)
                self._over[index] = terminated or truncated

    def close(self) -> None:
        """Close them."""
        for env in self._envs:
            env.close()


class Contender:
    """A vector environment to be timed."""

    def __init__(self, make: Callable[[], Any], step: Callable[[Any, Any], Any], reset: Callable[[Any], Any]) -> None:
        """Make and reset it, and take the time and the memory that this needs."""
        before, start = _memory(), time.perf_counter()
        self.envs = make()
        reset(self.envs)
        self.start_s, self.memory_mb = time.perf_counter() - start, _memory() - before
        self._step = step
        self.times: list[float] = []

    def step(self, actions: Any) -> None:
        """One vector step."""
        start = time.perf_counter()
        self._step(self.envs, actions)
        self.times.append(time.perf_counter() - start)


OTHERS = {"sb3": "stable_baselines3", "tianshou": "tianshou", "pufferlib": "pufferlib"}  # packages that may be missing
ONE_EACH = ("async", "async, pipes", "sb3", "tianshou")  # contenders with a process for each environment


def contenders(work: str, count: int, workers: int) -> dict[str, Callable[[], Contender]]:
    """A maker of each contender that is installed."""
    fns = [WORKS[work]] * count

    def gym(make: Callable[[], Any]) -> Callable[[], Contender]:
        return partial(Contender, make, lambda envs, actions: envs.step(actions), lambda envs: envs.reset(seed=0))

    def other(make: Callable[[], Any]) -> Callable[[], Contender]:
        return partial(Contender, make, lambda envs, actions: envs.step(actions), lambda envs: envs.reset())

    found = {
        "bare": other(partial(Bare, fns)),
        "sync": gym(partial(SyncVectorEnv, fns)),
        "async": gym(partial(AsyncVectorEnv, fns)),
        "async, pipes": gym(partial(AsyncVectorEnv, fns, shared_memory=False)),
        "lanes": gym(partial(LaneVectorEnv, fns, workers=workers)),
        "lanes, auto": gym(partial(LaneVectorEnv, fns, workers="auto")),
        "lanes, none": gym(partial(LaneVectorEnv, fns, workers=0)),
    }
    with suppress(ImportError):
        from stable_baselines3.common.vec_env import SubprocVecEnv

        found["sb3"] = other(partial(SubprocVecEnv, fns))
    with suppress(ImportError):
        from tianshou.env import SubprocVectorEnv

        found["tianshou"] = other(partial(SubprocVectorEnv, fns, share_memory=True))
    with suppress(ImportError):
        import pufferlib.emulation
        import pufferlib.vector

        emulated = partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=WORKS[work])
        make = partial(
            pufferlib.vector.make,
            emulated,
            backend=pufferlib.vector.Multiprocessing,
            num_envs=count,
            num_workers=max(w for w in range(1, workers + 1) if count % w == 0),
        )
        found["pufferlib"] = gym(make)
    return found


def chosen(work: str, count: int, given: argparse.Namespace) -> dict[str, Callable[[], Contender]]:
    """The contenders that are asked for; the bare work always."""
    found = contenders(work, count, given.workers)
    if given.only:
        found = {name: make for name, make in found.items() if name in given.only or name == "bare"}
    if count > given.most_processes:
        found = {name: make for name, make in found.items() if name not in ONE_EACH}
    return found


def compare(work: str, count: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all contenders at one work and number of environments."""
    alive: dict[str, Contender] = {}
    space = batch_space(WORKS[work]().action_space, count)
    space.seed(0)
    actions = space.sample()
    try:
        for name, make in chosen(work, count, given).items():
            alive[name] = make()
        end = time.perf_counter() + given.seconds * len(alive)
        while time.perf_counter() < end or len(alive["bare"].times) < 12:
            for contender in alive.values():
                for _ in range(3):  # the first after the others' work is not typical
                    contender.step(actions)
    finally:
        for contender in alive.values():
            contender.envs.close()
    middles = {name: statistics.median(contender.times[3:]) for name, contender in alive.items()}
    return [
        {
            "work": work,
            "envs": count,
            "contender": name,
            "step_ms": middles[name] * 1e3,
            "least_ms": min(contender.times) * 1e3,
            "of_sync": middles[name] / middles.get("sync", float("nan")),
            "above_us": (middles[name] - middles["bare"] / _ways(name, work, count, given)) / count * 1e6,
            "start_s": contender.start_s,
            "memory_mb": contender.memory_mb,
        }
        for name, contender in alive.items()
    ]


def _ways(name: str, work: str, count: int, given: argparse.Namespace) -> int:
    """Among how many a contender shares the work at best."""
    if name in ("bare", "sync", "lanes, auto", "lanes, none"):
        return 1
    processes = count if name in ONE_EACH else min(given.workers, count)
    return processes if work.startswith("wait") else min(processes, os.cpu_count() or 1)


def _memory() -> float:
    """Memory of this process and of all that it started, shared pages counted once each, in MB."""
    me = psutil.Process(os.getpid())
    total = 0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


def read_arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=["cartpole", "1ms", "wait10ms", "picture84"])
    parser.add_argument("--envs", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contender at each point")
    parser.add_argument("--only", nargs="+", default=[], help="names of contenders")
    parser.add_argument("--most-processes", type=int, default=128, help="of a contender with one for each environment")
    parser.add_argument(
        "--quick", action="store_true", help="CartPole with 8 and 128 environments, no processes but ours"
    )
    given = parser.parse_args()
    if given.quick:
        given.works, given.envs, given.seconds, given.most_processes = ["cartpole"], [8, 128], 0.3, 0
    return given


def installed(works: Sequence[str]) -> list[str]:
    """The works that can be done; tells what is missing."""
    for name, package in OTHERS.items():
        if find_spec(package) is None:
            print(f"{name} is left out: {package} is not installed.")
    if "ant" in works and find_spec("mujoco") is None:
        print('ant is left out: mujoco is not installed (pip install "gymnasium[mujoco]").')
        return [work for work in works if work != "ant"]
    return list(works)


def main() -> None:
    """Print a table."""
    given = read_arguments()
    works = installed(given.works)
    print(
        f"{'work':10} {'envs':>4} {'contender':14} {'ms a step':>10} {'least':>10} {'x sync':>7} {'us above':>9} "
        f"{'start':>7} {'MB':>7}"
    )
    for work in works:
        for count in given.envs:
            if count > given.most_processes and not given.only:
                print(
                    f"{work:10} {count:4} {', '.join(ONE_EACH)}: left out, more than {given.most_processes} processes"
                )
            for row in compare(work, count, given):
                print(
                    f"{row['work']:10} {row['envs']:4} {row['contender']:14} {row['step_ms']:10.3f} "
                    f"{row['least_ms']:10.3f} {row['of_sync']:7.2f} {row['above_us']:9.2f} {row['start_s']:6.2f}s "
                    f"{row['memory_mb']:7.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
