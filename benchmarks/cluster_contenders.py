"""What is compared on a cluster: our manager with lanes on its nodes, and plain Ray actors, many or few."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from cost_model import Setup
from workload import Work, WorkConfig, configuration, inputs

PATIENT = dict.fromkeys(("startup_timeout", "reset_timeout", "step_timeout"), 600)  # hundreds start at the same time
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Load:
    """What an environment does in a turn.

    Attributes:
        wait: Seconds that it waits.
        loops: Rounds of computing.
        compute: Seconds that these take.
        overlaps: Whether the environments of a lane wait at the same time.
    """

    wait: float = 0.0
    loops: int = 0
    compute: float = 0.0
    overlaps: bool = False

    def setup(self, envs: int, nodes: int, lanes: int, overlapping_lanes: int) -> Setup:
        """So many environments on nodes that may have so many lanes each, and so many where waits overlap."""
        if self.overlaps:
            lanes = min(overlapping_lanes, lanes)
        count = max(nodes, CORES) if self.compute else nodes * lanes
        return Setup(envs, min(envs, count), self.wait, self.compute, self.overlaps, CORES)


class Contender(ABC):
    """One way of stepping all environments.

    Attributes:
        ideal: Seconds of a turn if nothing but the environments took time.
    """

    ideal: float

    @abstractmethod
    def play(self) -> None:
        """Play one turn of every environment."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def pids(self) -> list[int]:
        """Its workers."""
        return []

    def traffic(self) -> tuple[int, int]:
        """Messages and bytes of main so far."""
        return -1, -1

    def workers_s(self) -> float:
        """Seconds of the workers' processors so far."""
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids())


class Lanes(Contender):
    """Ours: a manager whose environments live in lanes on the nodes."""

    def __init__(self, load: Load, setup: Setup, lanes: int) -> None:
        """Start it, and begin an episode.

        Args:
            load: What environments do.
            setup: How many of them, in how many lanes.
            lanes: The most lanes of any setup, which the nodes have room for.
        """
        from ragen.llm_agent.es_manager import EnvStateManager

        self.ideal = setup.ideal
        settings: dict[str, Any] = {"use_multiprocessing": True, "backend": "ray", "max_workers": lanes, **PATIENT}
        config = configuration(setup.envs, {"wait": load.wait, "loops": load.loops}, 1, **settings)
        config["custom_envs"]["Work"]["overlap_waits"] = load.overlaps
        self._manager = EnvStateManager(config, spread=lambda specs, _: _dealt(specs, setup.lanes))
        self._manager.reset()
        self._inputs = inputs(setup.envs)
        self._lanes = {record.lane for record in self._manager._engine.records.values()}
        if None in self._lanes:
            raise RuntimeError("some workers did not start, and the main process plays their environments: no figures")

    def play(self) -> None:
        """See :meth:`Contender.play`."""
        self._manager.step(self._inputs)

    def pids(self) -> list[int]:
        """See :meth:`Contender.pids`."""
        return [lane.pid for lane in self._lanes if lane is not None and lane.pid is not None]

    def traffic(self) -> tuple[int, int]:
        """See :meth:`Contender.traffic`."""
        size = sum(lane.handle.moved for lane in self._lanes if lane is not None and lane.handle is not None)
        return counted["messages"], size

    def close(self) -> None:
        """See :meth:`Contender.close`."""
        self._manager.close()


def _dealt(specs: Any, lanes: int) -> dict[int, int]:
    return {spec.env_id: place * lanes // len(specs) for place, spec in enumerate(specs)}


counted: Counter[str] = Counter()


@contextmanager
def messages_counted() -> Iterator[None]:
    """Count what is packed and unpacked in this process, which is every message of every lane."""
    from ragen.parallel.lanes import codec

    pack, unpack = codec.pack_request, codec.unpack_reply

    def packed(*given: Any) -> Any:
        counted["messages"] += 1
        return pack(*given)

    def unpacked(*given: Any) -> Any:
        counted["messages"] += 1
        return unpack(*given)

    codec.pack_request, codec.unpack_reply = packed, unpacked
    try:
        yield
    finally:
        codec.pack_request, codec.unpack_reply = pack, unpack


class BareWaits(Contender):
    """As many processes as there are lanes, which wait as often and do nothing else: the least this machine needs.

    Where waits overlap, each process waits once.
    """

    def __init__(self, load: Load, setup: Setup) -> None:
        """Start them."""
        self.ideal = setup.ideal
        script, waits = Path(__file__).with_name("bare_waits.py"), 1 if load.overlaps else setup.in_a_lane
        command = [sys.executable, str(script), str(setup.lanes), str(waits), str(load.wait)]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()

    def play(self) -> None:
        """See :meth:`Contender.play`."""
        assert self._parent.stdin is not None
        self._parent.stdin.write(b"\n")
        self._parent.stdin.flush()
        self._answer()

    def pids(self) -> list[int]:
        """See :meth:`Contender.pids`."""
        return [child.pid for child in psutil.Process(self._parent.pid).children()]

    def close(self) -> None:
        """See :meth:`Contender.close`."""
        try:
            self._parent.communicate(timeout=10)  # the end of its input ends it, and with it all others
        finally:
            self._parent.kill()

    def _answer(self) -> None:
        assert self._parent.stdout is not None
        if not self._parent.stdout.readline():
            raise RuntimeError(f"bare_waits.py has ended with code {self._parent.wait()}")


class ActorPerEnv(Contender):
    """A Ray actor for each environment, a call for each turn, as most packages do it."""

    def __init__(self, load: Load, setup: Setup, nodes: list[str]) -> None:
        """Start the actors, in turns on the nodes."""
        import ray

        self._ray = ray
        self.ideal = max(load.wait + load.compute, load.compute * setup.envs / setup.cores)
        self._actors = _placed(_Games, nodes, setup.envs, (load.wait, load.loops, 1, 1))

    def play(self) -> None:
        """See :meth:`Contender.play`."""
        self._ray.get([actor.step.remote(["Up"]) for actor in self._actors])

    def close(self) -> None:
        """See :meth:`Contender.close`."""
        for actor in self._actors:
            self._ray.kill(actor)


class ActorPerCore(Contender):
    """A Ray actor for each processor, a call a turn for all of its environments, as many at a time as lanes play."""

    def __init__(self, load: Load, setup: Setup, nodes: list[str]) -> None:
        """Start the actors, in turns on the nodes."""
        import ray

        self._ray, self.ideal = ray, setup.ideal
        count = min(setup.envs, max(CORES, len(nodes)))
        self._share = math.ceil(setup.envs / count)
        at_a_time = setup.envs if load.overlaps else setup.lanes
        threads = 1 if load.compute else math.ceil(at_a_time / count)
        self._actors = _placed(_Games, nodes, count, (load.wait, load.loops, self._share, threads))

    def play(self) -> None:
        """See :meth:`Contender.play`."""
        self._ray.get([actor.step.remote(["Up"] * self._share) for actor in self._actors])

    def close(self) -> None:
        """See :meth:`Contender.close`."""
        for actor in self._actors:
            self._ray.kill(actor)


class _Games:
    """Environments in an actor."""

    def __init__(self, wait: float, loops: int, count: int, threads: int) -> None:
        self._envs = [Work(WorkConfig(loops=loops, wait=wait)) for _ in range(count)]
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None

    def step(self, actions: list[str]) -> list[Any]:
        """Play a turn of each."""
        if self._threads is None:
            return [env.step(action) for env, action in zip(self._envs, actions, strict=True)]
        return list(self._threads.map(Work.step, self._envs, actions))

    def pid(self) -> int:
        """This process."""
        return os.getpid()


def _placed(kind: type, nodes: list[str], count: int, given: tuple[Any, ...]) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actors = []
    for index in range(count):
        strategy = NodeAffinitySchedulingStrategy(nodes[index % len(nodes)], soft=False)
        actors.append(ray.remote(kind).options(num_cpus=0, scheduling_strategy=strategy).remote(*given))
    ray.get([actor.pid.remote() for actor in actors])
    return actors
