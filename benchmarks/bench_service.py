"""The environment service beside a bare echo actor: turns a second, and how long a turn takes.

``python benchmarks/bench_service.py [--workers 8] [--trajectories 512] [--seconds 10] [--tag SimpleSokoban]`` starts a
small Ray cluster on this machine, and in it worker actors that play that many trajectories each, with no model: a turn
is asked for as soon as the one before is there. Then the same workers ask an actor that gives back what it is given, a
call for each turn. The rate of the second is what the same number of single calls could reach at best. With ``--think``
each trajectory waits so many seconds between two turns, as for a model: what a turn takes is latency then, and by how
much the workers' own timers were late is printed beside it, which is what the machine added to it by being busy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import ray

ROOT = Path(__file__).resolve().parents[1]
MOVES = ("Up", "Down", "Left", "Right")
ASKED = {"open": 1, "turns": 9}

Turn = Callable[[int], Awaitable[bool]]  # the number of a turn; whether the episode goes on
Taken = tuple[list[float], list[float]]  # seconds that turns took, and by which timers were late


def configuration(tag: str, lanes: int) -> dict[str, Any]:
    """RAGEN's own, with as many lanes."""
    from omegaconf import OmegaConf

    from ragen.llm_agent.config.loading import load_config

    given = [f"es_manager.max_workers={lanes}", "es_manager.crash_report_dir=null", "output_dir=x"]
    plain: Any = OmegaConf.to_container(load_config("_2_sokoban", given), resolve=True)
    plain["es_manager"]["use_multiprocessing"] = lanes > 0
    if tag not in plain["custom_envs"]:
        raise SystemExit(f"--tag {tag}: there are {', '.join(sorted(plain['custom_envs']))}")
    return plain


class Echo:
    """Gives back what it is given."""

    async def echo(self, *asked: Any) -> Any:
        """The arguments."""
        return asked


class Worker:
    """Plays many trajectories at once."""

    def __init__(self, config: dict[str, Any], number: int, think: float) -> None:
        """Know the service."""
        from ragen.agent_loop.session import connect

        self._service = connect(config)
        self._number, self._think = number, think
        self._sessions: dict[int, Any] = {}

    async def open(self, tag: str, trajectories: int) -> None:
        """Open all environments."""
        await asyncio.gather(*(self._begin(tag, place) for place in range(trajectories)))

    async def _begin(self, tag: str, place: int) -> None:
        from ragen.agent_loop.session import Session

        if place in self._sessions:
            await self._sessions.pop(place).close()
        session = self._sessions[place] = Session(self._service, tag, self._seed(place))
        await session.open()

    async def play(self, tag: str, trajectories: int, seconds: float) -> Taken:
        """Turns that were played in so many seconds, and what each took."""

        async def turn(place: int, number: int, draws: Random) -> bool:
            result = await self._sessions[place].play([draws.choice(MOVES)], 100 - number)
            return not result.done

        async def begin(place: int) -> None:
            await self._begin(tag, place)

        return await self._measure(trajectories, seconds, turn, begin)

    async def close(self) -> None:
        """Close all environments."""
        await asyncio.gather(*(session.close() for session in self._sessions.values()))
        self._sessions.clear()

    async def echo(self, actor: Any, trajectories: int, seconds: float) -> Taken:
        """Calls that were answered in so many seconds, and what each took."""

        async def turn(place: int, number: int, draws: Random) -> bool:
            await actor.echo.remote(("key", place), number, [draws.choice(MOVES)], 100 - number)
            return True

        async def begin(place: int) -> None:
            pass

        return await self._measure(trajectories, seconds, turn, begin)

    def _seed(self, place: int) -> int:
        return 10_000 * self._number + place

    async def _measure(self, trajectories: int, seconds: float, turn: Any, begin: Any) -> Taken:
        end, took, late = time.perf_counter() + seconds, [], []

        async def one(place: int) -> None:
            draws, number = Random(self._seed(place)), 0
            await asyncio.sleep(draws.random() * self._think)
            while (start := time.perf_counter()) < end:
                goes_on = await turn(place, number, draws)
                took.append(time.perf_counter() - start)
                number += 1
                if not goes_on or number >= ASKED["turns"]:
                    await begin(place)
                    number = 0
                if self._think:
                    awake = time.perf_counter() + self._think
                    await asyncio.sleep(self._think)
                    late.append(time.perf_counter() - awake)

        await asyncio.gather(*(one(place) for place in range(trajectories)))
        return took, late


def told(name: str, answers: list[Taken], seconds: float) -> float:
    """Print a line; turns a second."""
    took, late = (sorted(value for answer in answers for value in answer[which]) for which in (0, 1))
    rate = len(took) / seconds
    noise = f"   timers late: {quantiles(late)}" if late else ""
    print(f"{name:24} {rate:9.0f} a second   {quantiles(took)}{noise}", flush=True)
    return rate


def quantiles(ordered: list[float]) -> str:
    """Median and 99th percentile of durations, in words."""
    p50, p99 = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"p50 {p50:8.1f} ms   p99 {p99:8.1f} ms"


def main() -> None:
    """Measure both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--trajectories", type=int, default=512, help="of each worker")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--lanes", type=int, default=1, help="0: in the service's own process")
    parser.add_argument("--think", type=float, default=0.0, help="seconds between two turns of a trajectory")
    parser.add_argument("--tag", default="SimpleSokoban")
    asked = parser.parse_args()
    from ragen.agent_loop.service_metrics import ServiceMeter

    os.environ["RAY_AUTH_MODE"] = "disabled"
    environment = {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    ray.init(
        address="local",
        num_cpus=asked.workers + 2,
        include_dashboard=False,
        object_store_memory=80 * 1024**2,
        runtime_env={"env_vars": environment},
        log_to_driver=False,
    )
    try:
        config = configuration(asked.tag, asked.lanes)
        kind = ray.remote(num_cpus=0, max_concurrency=10_000)(Worker)
        workers = [kind.remote(config, number, asked.think) for number in range(asked.workers)]
        echo = ray.remote(num_cpus=0, max_concurrency=100_000)(Echo).remote()
        told_of = asked.trajectories, asked.seconds
        print(f"{asked.workers} workers of {asked.trajectories} trajectories, {asked.seconds:g} s each", flush=True)
        ray.get([worker.echo.remote(echo, 8, 0.5) for worker in workers])
        bare = told(
            "bare echo actor", ray.get([worker.echo.remote(echo, *told_of) for worker in workers]), asked.seconds
        )
        start = time.perf_counter()
        ray.get([worker.open.remote(asked.tag, asked.trajectories) for worker in workers])
        opened = asked.workers * asked.trajectories
        print(f"{opened} environments opened in {time.perf_counter() - start:.1f} s, the service's start among it")
        meter = ServiceMeter(config)
        meter.read()
        answers = ray.get([worker.play.remote(asked.tag, *told_of) for worker in workers])
        ours = told("environment service", answers, asked.seconds)
        values = meter.read()
        names = ("turns_per_batch", "queued_s/p50", "queued_s/p99", "worked_s/p50", "worked_s/p99", "failed")
        ray.get([worker.close.remote() for worker in workers])
        print("   ".join(f"{name} {values[f'env_service/{name}']:.4g}" for name in names))
        print(f"{ours / bare:.2f} of the echo actor's rate")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
