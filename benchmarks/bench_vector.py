"""Vector environments side by side: gymnasium's, Stable-Baselines3's, tianshou's, PufferLib's and ours.

    python benchmarks/bench_vector.py                                          # a short table
    python benchmarks/bench_vector.py --works cartpole wait10ms --envs 8 128 512 --workers 8 --json out.json

Each contender steps the same environments with the same actions. Contenders are alive at the same time and take turns,
so that a disturbance of the machine hits all of them; shown is the median time of a vector step, and what it costs an
environment above the bare work, which is ``SyncVectorEnv``'s own time for works that compute. Packages that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from ragen.vector import LaneVectorEnv


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
    "picture256": partial(Load, 1e-4, 0.0, (256, 256, 3)),
}


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


def contenders(work: str, count: int, workers: int, names: Sequence[str]) -> dict[str, Callable[[], Contender]]:
    """What makes each contender that is installed."""
    fns = [WORKS[work]] * count

    def ours(**given: Any) -> Callable[[], Contender]:
        return gym(partial(LaneVectorEnv, fns, **given))

    def gym(make: Callable[[], Any]) -> Callable[[], Contender]:
        return partial(Contender, make, lambda envs, actions: envs.step(actions), lambda envs: envs.reset(seed=0))

    found = {
        "sync": gym(partial(SyncVectorEnv, fns)),
        "async": gym(partial(AsyncVectorEnv, fns)),
        "async, pipes": gym(partial(AsyncVectorEnv, fns, shared_memory=False)),
        "lanes": ours(workers=workers),
        "lanes, pipes": ours(workers=workers, shared_memory=False),
        "lanes, auto": ours(workers="auto"),
        "lanes, none": ours(workers=0),
    }
    with suppress(ImportError):
        from stable_baselines3.common.vec_env import SubprocVecEnv

        found["sb3"] = partial(
            Contender, partial(SubprocVecEnv, fns), lambda envs, actions: envs.step(actions), lambda envs: envs.reset()
        )
    with suppress(ImportError):
        from tianshou.env import SubprocVectorEnv

        make = partial(SubprocVectorEnv, fns, share_memory=True)
        found["tianshou"] = partial(
            Contender, make, lambda envs, actions: envs.step(actions), lambda envs: envs.reset()
        )
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
        found["pufferlib"] = partial(
            Contender, make, lambda envs, actions: envs.step(actions), lambda envs: envs.reset(seed=0)
        )
    return {name: make for name, make in found.items() if not names or name in names}


def compare(work: str, count: int, workers: int, seconds: float, names: Sequence[str]) -> list[dict[str, Any]]:
    """Time all contenders at one work and number of environments."""
    alive: dict[str, Contender] = {}
    try:
        for name, make in contenders(work, count, workers, names).items():
            alive[name] = make()
        space = next(iter(alive.values())).envs.action_space
        actions = np.stack([space.sample() for _ in range(count)]) if next(iter(alive)) == "sb3" else space.sample()
        end = time.perf_counter() + seconds * len(alive)
        while time.perf_counter() < end or len(next(iter(alive.values())).times) < 12:
            for contender in alive.values():
                for _ in range(3):  # the first after the others' work is not typical
                    contender.step(actions)
    finally:
        for contender in alive.values():
            contender.envs.close()
    bare = statistics.median(alive["sync"].times[3:]) if "sync" in alive else float("nan")
    rows = []
    for name, contender in alive.items():
        steps = statistics.median(contender.times[3:])
        rows.append(
            {
                "work": work,
                "envs": count,
                "contender": name,
                "step_ms": steps * 1e3,
                "us_env": steps / count * 1e6,
                "of_sync": steps / bare,
                "start_s": contender.start_s,
                "memory_mb": contender.memory_mb,
            }
        )
    return rows


def _memory() -> float:
    """Memory of this process and of all that it started, shared pages counted once each, in MB."""
    me = psutil.Process(os.getpid())
    total = 0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=["cartpole", "1ms", "wait10ms", "picture84"])
    parser.add_argument("--envs", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contender at each point")
    parser.add_argument("--only", nargs="+", default=[], help="names of contenders")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args()
    rows = []
    print(
        f"{'work':10} {'envs':>4} {'contender':14} {'ms a step':>10} {'us/env':>8} {'x sync':>7} {'start':>7} {'MB':>7}"
    )
    for work in given.works:
        for count in given.envs:
            for row in compare(work, count, given.workers, given.seconds, given.only):
                rows.append(row)
                print(
                    f"{row['work']:10} {row['envs']:4} {row['contender']:14} {row['step_ms']:10.3f} "
                    f"{row['us_env']:8.2f} {row['of_sync']:7.2f} {row['start_s']:6.2f}s {row['memory_mb']:7.0f}",
                    flush=True,
                )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
