"""A cluster without Ray: each of its nodes is an agent in a thread of this process, which comes and goes as it is told.

It stands in for :class:`envlanes.kinds.ray_cluster.RayCluster`: agents, supervisors, workers and what kills them
are real, calls are made through an event loop here instead of through Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

from envlanes.kinds.ray import Node, NodeAgent, versions
from envlanes.kinds.ray_options import RayOptions


class SimulatedCluster:
    """Nodes that are agents in threads.

    Attributes:
        there: Names of the nodes that live.
        dead: Names of nodes of which Ray would say that they are dead.
        placed: Names of nodes, each time that an agent was placed there.
        agents: The agents that live, by node.
    """

    names: Sequence[str] = ("one", "two")
    starts_agents = True
    last: SimulatedCluster | None = None  # the one that was made last

    def __init__(self, options: RayOptions, start_method: str, preload: Sequence[str]) -> None:
        self.how = start_method, preload
        self.there = list(SimulatedCluster.names)
        self.dead: set[str] = set()
        self.placed: list[str] = []
        self.agents: dict[str, SimulatedAgent] = {}
        SimulatedCluster.last = self

    def nodes(self) -> list[Node]:
        return [Node(name, name, "127.0.0.1", {"CPU": 2.0}) for name in self.there]

    def seats(self, node: Node, most: int | None) -> int:
        return 2 if most is None else most

    def may_have_room(self) -> bool:
        return False

    def why_none(self) -> str:
        return "there is none."

    def place(self, node: Node, seats: int) -> SimulatedAgent:
        self.agents[node.name] = SimulatedAgent(lambda: NodeAgent(node.name, *self.how, versions()))
        self.placed.append(node.name)
        if node.name not in self.there or not self.starts_agents:
            self.agents[node.name].die()
        return self.agents[node.name]

    def get(self, call: Future[Any], patience: float) -> Any:
        return call.result(patience)

    def why_lost(self, node: Node, error: Exception, was_up: bool) -> str:
        if node.name in self.dead:
            return "is dead"
        return "has lost its agent" if was_up else f"could not start an agent: {error}"

    def kill(self, agent: SimulatedAgent) -> None:
        agent.die()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.die()

    # What happens to nodes

    def remove(self, name: str) -> None:
        """Kill a node's agent, and have no other one placed there."""
        self.there.remove(name)
        self.kill_agent(name)

    def kill_agent(self, name: str) -> None:
        """Kill a node's agent; returns when its workers have ended too."""
        self.agents.pop(name).die()

    def hold(self, name: str, until: str = "") -> None:
        """Let nothing reach a node, nor come from it; not any more once this method of its agent is called."""
        self.agents[name].released_by = until
        self.agents[name].passes.clear()


class SimulatedAgent:
    """An agent with an event loop in a thread; its methods are called as an actor's: ``agent.end.remote(token)``."""

    def __init__(self, make: Callable[[], NodeAgent]) -> None:
        self.passes = threading.Event()
        self.passes.set()
        self.released_by = ""
        self._lock = threading.Lock()
        self._is_dead = False
        self._calls: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._agent = make()
        self._thread = threading.Thread(target=self._run, name="simulated node")
        self._thread.start()

    def __getattr__(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(remote=partial(self.call, method))

    def call(self, method: str, *given: Any) -> Future[Any]:
        """Begin a call, whose future fails where the agent dies before it returns."""
        if method == self.released_by:
            self.passes.set()
        future: Future[Any] = Future()
        with self._lock:
            if self._is_dead:
                future.set_exception(ConnectionError("the agent is dead"))
                return future
            self._calls.add(future)
        asyncio.run_coroutine_threadsafe(self._answer(future, method, given), self._loop)
        return future

    def die(self) -> None:
        """End the agent, as if it were killed: at once for who calls it, with all its workers when this returns."""
        with self._lock:
            was_dead, self._is_dead = self._is_dead, True
            calls, self._calls = self._calls, set()
        if was_dead:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for future in calls:
            future.set_exception(ConnectionError("the agent was killed"))

    async def _answer(self, future: Future[Any], method: str, given: tuple[Any, ...]) -> None:
        await self._passing()
        try:
            value, error = await getattr(self._agent, method)(*given), None
        except Exception as raised:
            value, error = None, raised
        await self._passing()
        with self._lock:
            if future not in self._calls:
                return
            self._calls.discard(future)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    async def _passing(self) -> None:
        while not self.passes.is_set():
            await asyncio.sleep(0.01)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(self._gathered(tasks))
        self._loop.run_until_complete(self._agent.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _gathered(self, tasks: set[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
