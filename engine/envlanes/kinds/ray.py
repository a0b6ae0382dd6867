"""Workers on the nodes of a Ray cluster: ``es_manager.backend: ray``.

    main process                                          a node
    +----------------------------+   post(messages)       +------------------------------------+
    | RayKind                    |                        | NodeAgent, an actor of Ray's       |
    |   AgentClient, one a node -+----------------------->|   WorkerKind, as on main's machine   |
    |     sender, reader         |<-----------------------+     WorkerHandle --- worker        |
    |   NodeHandle, one a worker |   replies()            |     WorkerHandle --- worker        |
    +----------------------------+                        +------------------------------------+

Everything that passes between machines is a call of Ray's, and nothing here listens. An agent is an actor that has the
workers of its node: processes under a supervisor, as the main process's own.

1. Messages of workers go to their node's outbox. Its sender thread makes one call of all that is there, so a turn takes
   a few calls for each node and not one for each worker.
2. One call of ``replies()`` is always under way: it returns the messages of workers since the last one, as soon as
   there is one. The reader thread hands each worker its own.
3. A worker's end is one of these replies. An agent's end, or its node's, is the failure of ``replies()``, in Ray's
   words. A node that stops without Ray's noticing shows when a worker is overdue: its agent does not say then where the
   worker is, and is given up.
4. A worker's deadline runs on its node's clock, and only while its worker has the request: the agent is asked where its
   workers are when one may be overdue, and not before.
5. Ray ends actors with the process that made them, and workers end with their agent: nothing outlives the main process.

Requests to Ray beside such calls (to connect, which nodes there are, to place an agent) are in
:mod:`envlanes.kinds.ray_cluster`; tests have a cluster of their own there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import platform
import secrets
import socket
import threading
import time
import timeit
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envlanes.errors import LaneStartError
from envlanes.kinds.process.kind import ProcessKind
from envlanes.this_process import NODE
from envlanes.workers import codec
from envlanes.workers.handle import Ending, Message, Position, WorkerGone, WorkerHandle, WorkerKind

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between looks at which nodes there are
ROOM_TIMEOUT = 5.0  # seconds for others to give up what they claim
ANSWER_TIMEOUT = 10.0  # seconds after which an agent that does not answer is given up; it needs milliseconds
_CLOSE_TIMEOUT = 5.0  # seconds for all agents together
_LATE = 10.0  # seconds after which an agent that is not up yet gets workers only where there is no other one
_FRESH = 0.05  # seconds for which an agent's reply about its workers' positions is good
_LONGEST_WAY = 30.0  # seconds that a request, or a reply, may be on its way between two machines
_PATIENCE = 0.5  # seconds between looks whether an answer is still wanted
_PINGS = 3  # the shortest counts: a machine may be busy during one
_AT_ONCE = 4096  # bytes: wake-ups that are read together

Posted = tuple[str, str | Message]  # a worker's token, and its name to start it, or a request
WorkerEvent = int | Message | None  # of a worker: its process id, once it is up; a reply; that it has ended


# On a node


def versions() -> dict[str, str]:
    """Versions that must be equal on all nodes, since values pickled on one are unpickled on another."""
    import numpy

    return {"Python": ".".join(platform.python_version_tuple()[:2]), "numpy": numpy.__version__}


class NodeAgent:
    """The actor that starts, asks and ends the workers of its node; each is known by a token that main draws."""

    def __init__(self, node: str, start_method: str, preload: Sequence[str], wanted: Mapping[str, str]) -> None:
        """Have what starts workers ready.

        Args:
            node: Name of the node, for people.
            start_method: Start method of workers.
            preload: Modules that workers will need.
            wanted: Result of :func:`versions` in the main process.

        Raises:
            LaneStartError: The versions here are others, or no worker can be started.
        """
        here = versions()
        if other := [
            f"{name} {here.get(name)} (here {wanted[name]})" for name in wanted if here.get(name) != wanted[name]
        ]:
            raise LaneStartError(f"cannot be used: it has {', '.join(other)}; install the same version there")
        self._node = node
        self._kind = ProcessKind(start_method, preload, {NODE: node})
        self._workers: dict[str, WorkerHandle] = {}
        self._unwanted: set[str] = set()  # to be ended before their start was known here
        self._at_work: dict[str, int] = {}  # numbers of the requests that workers have and did not reply to
        self._replies: list[tuple[str, WorkerEvent]] = []
        self._may_reply = asyncio.Event()

    async def ping(self) -> bool:
        """Answer."""
        return True

    async def post(self, posted: Sequence[Posted]) -> None:
        """Start workers, and send requests."""
        for token, given in posted:
            try:
                if isinstance(given, str):
                    self._start(token, given)
                else:
                    self._at_work[token] = codec.number_of(given)
                    self._workers[token].send(given)
                    self._look(token)
            except (KeyError, WorkerGone):
                self._look(token)

    async def replies(self) -> list[tuple[str, WorkerEvent]]:
        """Messages of workers since the last call, in order; waits for the first."""
        await self._may_reply.wait()
        self._may_reply.clear()
        replies, self._replies = self._replies, []
        return replies

    async def positions(self) -> dict[str, tuple[int, int, float]]:
        """Of each worker that has a request: its number, the item's index, and the seconds that it has been at it."""
        now, found = time.monotonic(), {}
        for token, number in self._at_work.items():
            position = self._workers[token].position() if token in self._workers else None
            if position is not None and position.request == number:
                found[token] = (number, position.item, now - position.since)
        return found

    async def stacks(self, token: str) -> str:
        """The stacks of a worker's threads."""
        worker = self._workers.get(token)
        return await asyncio.to_thread(worker.stacks) if worker is not None else ""

    async def end(self, token: str) -> Ending:
        """End a worker; how it ended, its position with the seconds that it had been there."""
        worker = self._workers.pop(token, None)
        if worker is None:
            self._unwanted.add(token)
            return Ending(error="was not started")
        self._unwatch(worker.fileno())
        self._at_work.pop(token, None)
        # In a thread: it waits for the supervisor, and this loop serves all other workers.
        ending = await asyncio.to_thread(worker.end)
        now, position = time.monotonic(), ending.position
        if position is not None:
            ending = replace(ending, position=position._replace(since=now - position.since))
        return replace(ending, where=f"{ending.where} on {self._node}" if ending.where else "")

    async def close(self) -> None:
        """End all workers, and what started them."""
        for token in list(self._workers):
            await self.end(token)
        await asyncio.to_thread(self._kind.close)

    def _start(self, token: str, name: str) -> None:
        if token in self._unwanted:
            self._unwanted.discard(token)
            return
        try:
            self._workers[token] = worker = self._kind.start(f"{name} on {self._node}")
        except LaneStartError as error:
            log.warning("%s", error)
            self._report(token, None)
            return
        asyncio.get_running_loop().add_reader(worker.fileno(), self._look, token)

    def _look(self, token: str) -> None:
        """Take what a worker has to say, and go on sending to it."""
        worker, loop = self._workers.get(token), asyncio.get_running_loop()
        if worker is None:
            self._report(token, None)
            return
        was_up = worker.is_up
        try:
            reply = worker.receive()
        except WorkerGone:
            self._unwatch(worker.fileno())
            self._report(token, None)
            return
        if worker.is_up and not was_up:
            self._report(token, worker.pid or 0)
        if reply is not None:
            self._at_work.pop(token, None)
            self._report(token, codec.portable(reply))
        if worker.unsent:
            loop.add_writer(worker.fileno(), self._look, token)
        else:
            loop.remove_writer(worker.fileno())

    def _report(self, token: str, event: WorkerEvent) -> None:
        self._replies.append((token, event))
        self._may_reply.set()

    def _unwatch(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)


# In the main process


@dataclass(frozen=True)
class Node:
    """A machine, or what Ray takes for one.

    Attributes:
        node_id: Ray's id of it, which no other node ever has.
        name: For people.
        address: In the cluster's network.
        amounts: Amount of each of its resources.
        is_head: Whether it is the head of the cluster.
    """

    node_id: str
    name: str
    address: str
    amounts: dict[str, float] = field(default_factory=dict, compare=False)
    is_head: bool = False


class AgentClient:
    """The main process's end of a node: what workers ask of its agent, and what they hear of it.

    Attributes:
        node: The node.
        seats: Number of workers that have claimed a place there.
        why: The reason that it is lost, in words that follow the node's name; "" while it can be used.
        begun: When its agent was placed, on ``time.monotonic()``.
        is_there: Whether the agent has come up.
        round_trip_s: Seconds that a call there and back takes.
        workers: Those of this node that were not ended yet, by token.
    """

    def __init__(self, cluster: Any, node: Node, seats: int) -> None:
        """Begin to start the agent, without waiting for it."""
        self.node, self.seats = node, seats
        self.why, self.begun = "", time.monotonic()
        self.is_there, self.round_trip_s = False, 0.0
        self.workers: dict[str, NodeHandle] = {}
        self._cluster, self._agent = cluster, cluster.place(node, seats)
        self._lock = threading.RLock()
        self._outbox: list[Posted] = []
        self._has_posted = threading.Event()
        self._positions: dict[str, tuple[int, int, float]] = {}
        self._positions_at = -math.inf
        self._threads = [
            threading.Thread(target=run, name=f"envlanes {does} {node.name}", daemon=True)
            for does, run in (("asks", self._send), ("hears", self._read))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_up(self) -> bool:
        """Whether the agent answers, as far as known."""
        return self.is_there and not self.why

    @property
    def is_late(self) -> bool:
        """Whether the agent should answer by now, and does not."""
        return not self.is_there and time.monotonic() - self.begun > _LATE

    def load(self, more: int = 0) -> float:
        """Workers for each seat, with so many more."""
        return (len(self.workers) + more) / self.seats

    def post(self, token: str, given: str | Message) -> None:
        """Have a worker of this name started, or asked with this message; never waits."""
        with self._lock:
            self._outbox.append((token, given))
        self._has_posted.set()

    def position(self, token: str) -> tuple[int, int, float] | None:
        """A worker's position: its request, the item, and since when; None if it has none.

        The agent is asked, unless it was a moment ago.
        """
        if time.monotonic() - self._positions_at > _FRESH:
            self._positions, self._positions_at = self.ask("positions") or {}, time.monotonic()
        found = self._positions.get(token)
        return (found[0], found[1], self._positions_at - found[2]) if found is not None else None

    def end(self, worker: NodeHandle) -> Ending:
        """End a worker; bounded in time."""
        self.workers.pop(worker.token, None)
        if not self.why and not self.is_there:  # it is logged when it comes up
            with contextlib.suppress(Exception):  # of many kinds: Ray may be shut down
                self._agent.end.remote(worker.token)
            return Ending(error=f"could not be started: node {self.node.name} has no agent yet", is_shared=True)
        ending: Ending | None = self.ask("end", worker.token)
        if ending is None:
            what, where = ("ended", worker.where) if worker.is_up else ("could not be started", "")
            return Ending(where, error=f"{what}: node {self.node.name} {self.why}", is_shared=True)
        if ending.position is not None:
            since = time.monotonic() - ending.position.since
            ending = replace(ending, position=ending.position._replace(since=since))
        return ending

    def give_up(self, why: str) -> None:
        """Use the node no more: its workers are as good as dead."""
        with self._lock:
            if self.why:
                return
            self.why = why
        if why != "was closed":
            log.warning("node %s %s", self.node.name, why)
        for worker in list(self.workers.values()):
            worker.fail(f"node {self.node.name} {why}")
        self._has_posted.set()

    def begin_to_close(self) -> Any:
        """Have the agent end its workers; the call."""
        with contextlib.suppress(Exception):  # of many kinds: Ray may be shut down
            return self._agent.close.remote() if self.is_up else None

    def close(self, call: Any, deadline: float) -> None:
        """End the agent when that call has returned, or at the deadline on ``time.monotonic()``."""
        with contextlib.suppress(Exception):  # it may have ended
            if call is not None:
                self._cluster.get(call, max(0.0, deadline - time.monotonic()))
        self.give_up("was closed")
        self._cluster.kill(self._agent)
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))

    def ask(self, method: str, *given: Any) -> Any:
        """Call the agent, which is given up if it does not answer; None then."""
        if self.why:
            return None
        try:
            return self._cluster.get(getattr(self._agent, method).remote(*given), ANSWER_TIMEOUT)
        except TimeoutError:
            self.give_up(f"does not answer within {ANSWER_TIMEOUT:g} s")
        except Exception as error:  # of many kinds
            self.give_up(self._cluster.why_lost(self.node, error, True))
        return None

    # Threads

    def _send(self) -> None:
        """Post what workers have to say, all that is there in one call."""
        while not self.why:
            self._has_posted.wait()
            self._has_posted.clear()
            with self._lock:
                messages, self._outbox = self._outbox, []
            if messages and not self.why:
                with contextlib.suppress(Exception):  # of which the reader hears too
                    self._agent.post.remote(messages)

    def _read(self) -> None:
        """Hand replies to their workers, until the agent is lost or closed."""
        try:
            self._greet()
            while (replies := self._await(self._agent.replies.remote())) is not None:
                for token, event in replies:
                    if (worker := self.workers.get(token)) is not None:
                        worker.hear(event)
        except Exception as error:  # of many kinds
            self.give_up(self._cluster.why_lost(self.node, error, self.is_there))
        finally:
            self._cluster.kill(self._agent)

    def _greet(self) -> None:
        if self._await(self._agent.ping.remote()) is None:
            return
        # The shortest: the others may have waited for something else on the way.
        self.round_trip_s = min(timeit.repeat(lambda: self.ask("ping"), number=1, repeat=_PINGS))
        self.is_there = True

    def _await(self, call: Any) -> Any:
        """The result of a call, however late; None if the agent was given up meanwhile."""
        while not self.why:
            with contextlib.suppress(TimeoutError):
                return self._cluster.get(call, _PATIENCE)
        return None


class NodeHandle(WorkerHandle):
    """One worker on a node. Its node's reader hands it what it says; all else belongs to the thread that has it."""

    def __init__(self, agent: AgentClient, name: str) -> None:
        """Begin to start a worker.

        Raises:
            OSError: There can be no more descriptors.
        """
        self._readable, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        self._readable.setblocking(False)
        self.agent, self.token = agent, secrets.token_hex(8)
        self._heard: deque[WorkerEvent] = deque()
        # Reentrant: the garbage collector may end another use of the same handle within it.
        self._lock = threading.RLock()
        self._lost = ""  # reason that nothing more will be heard
        self._number, self._sent_at, self._on_its_way = 0, 0.0, 0.0
        self._ending: Ending | None = None
        agent.workers[self.token] = self
        agent.post(self.token, name)
        if agent.why:  # since a moment ago
            self.fail(agent.why)

    @property
    def node(self) -> str:
        """See :attr:`WorkerHandle.node`."""
        return self.agent.node.name

    @property
    def where(self) -> str:
        """See :attr:`WorkerHandle.where`."""
        return f"pid {self.pid} on {self.node}" if self.pid is not None else f"on {self.node}"

    def send(self, message: Message) -> None:
        """See :meth:`WorkerHandle.send`; the agent sends it to a worker that is not up yet too."""
        if self._lost and not self._heard:
            raise WorkerGone(self._lost)
        message = codec.portable(message)
        self.moved += sum(map(len, message))
        self._number, self._sent_at, self._on_its_way = codec.number_of(message), time.monotonic(), 0.0
        self.agent.post(self.token, message)

    def fileno(self) -> int:
        """See :meth:`WorkerHandle.fileno`."""
        return self._readable.fileno()

    def receive(self) -> Message | None:
        """See :meth:`WorkerHandle.receive`."""
        while True:
            with self._lock:
                if not self._heard:
                    if self._lost:
                        raise WorkerGone(self._lost)
                    with contextlib.suppress(BlockingIOError):
                        self._readable.recv(_AT_ONCE)
                    return None
                event = self._heard.popleft()
            if isinstance(event, int):
                self.pid, self.is_up = event, True
            elif event is not None:
                self.moved += sum(map(len, event))
                return event

    def hear(self, event: WorkerEvent) -> None:
        """Take what the worker says; in the reader's thread."""
        if event is None:
            self.fail("its worker has ended")
            return
        with self._lock, contextlib.suppress(OSError):  # closed, or full and thus readable
            self._heard.append(event)
            self._wakeup.send(b"\0")

    def fail(self, why: str) -> None:
        """Nothing more will be heard of the worker; in any thread. From now on the descriptor is readable for good."""
        with self._lock:
            self._lost = self._lost or why
            self._wakeup.close()

    def kill(self) -> None:
        """See :meth:`WorkerHandle.kill`: who waits for it finds it dead, and ends it."""
        self.fail("it was killed")

    def position(self) -> Position | None:
        """See :meth:`WorkerHandle.position`; no time passes while the request, or the reply, is on its way."""
        if self._ending is not None:
            return self._ending.position
        if not self.is_up:
            return None
        if time.monotonic() - self._sent_at < _FRESH or self._lost:
            return Position(self._number, 0, self._sent_at)
        found = self.agent.position(self.token)  # may take its time
        if found is not None and found[0] == self._number:
            self._on_its_way = 0.0
            return Position(*found)
        now = time.monotonic()
        self._on_its_way = self._on_its_way or now
        return Position(self._number, 0, min(now, self._on_its_way + _LONGEST_WAY))

    def stacks(self) -> str:
        """See :meth:`WorkerHandle.stacks`."""
        return (self.is_up and self._ending is None and self.agent.ask("stacks", self.token)) or ""

    def end(self) -> Ending:
        """See :meth:`WorkerHandle.end`."""
        if self._ending is None:
            self._ending = self.agent.end(self)
            self.fail("it was ended")
            self._readable.close()
        return self._ending


class RayKind(WorkerKind):
    """Starts workers on nodes, through an agent on each.

    Attributes:
        name: ``"ray"``.
        is_remote: True.
    """

    name = "ray"
    is_remote = True

    def __init__(self, cluster: Any, most: int | None, startup_timeout: float) -> None:
        """Have agents placed, without waiting for them.

        Args:
            cluster: The cluster; it is closed with the kind, and if this raises.
            most: Maximum number of workers; None for as many as the nodes have room for.
            startup_timeout: Seconds that an agent may take to be there.

        Raises:
            LaneStartError: There is no node with room for a worker.
        """
        self._most, self._cluster, self._startup_timeout = most, cluster, startup_timeout
        self._lock = threading.RLock()
        self._agents: dict[str, AgentClient] = {}  # by node, the last one of each
        self._looked = -math.inf
        self._is_closed = False
        try:
            deadline = time.monotonic() + ROOM_TIMEOUT
            self._look()
            while not self._agents and cluster.may_have_room() and time.monotonic() < deadline:
                time.sleep(LOOK / 5)  # the cluster learns of the end of other workers a little later
                self._look()
            if not self._agents:
                raise LaneStartError(cluster.why_none())
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:  # type: ignore[override]
        """Workers that the nodes have room for now."""
        return max(1, sum(agent.seats for agent in self._present()))

    @property
    def round_trip_s(self) -> float:  # type: ignore[override]
        """Of the nodes that are there, the slowest one's."""
        return max((agent.round_trip_s for agent in self._present()), default=0.0)

    def start(self, name: str) -> NodeHandle:
        """See :meth:`WorkerKind.start`; on the node that has most room for it."""
        with self._lock:
            if not self._present():
                self._look()
            if not (agents := self._present()):
                whys = [f"{each.node.name} {each.why}" for each in self._agents.values()]
                raise LaneStartError(f"no node of the cluster can be used: {'; '.join(whys)}")
            agent = min(agents, key=lambda each: (each.is_late, each.load(1)))
            try:
                return NodeHandle(agent, name)
            except OSError as error:
                raise LaneStartError(f"{name}: no worker can be started on {agent.node.name}: {error}") from error

    def is_misplaced(self, worker: WorkerHandle) -> bool:
        """See :meth:`WorkerKind.is_misplaced`: another node would have more room for it, even with it."""
        if time.monotonic() - self._looked > LOOK:
            with contextlib.suppress(Exception):  # Ray raises many kinds while its head is away
                self._look()
        assert isinstance(worker, NodeHandle)
        return any(agent.is_up and agent.load(1) < worker.agent.load() for agent in self._present())

    def close(self) -> None:
        """See :meth:`WorkerKind.close`: agents and what is left of their workers end, and a cluster of our own."""
        with self._lock:
            self._is_closed = True
            agents = list(self._agents.values())
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        # All calls first: the nodes end their workers side by side.
        for agent, call in [(agent, agent.begin_to_close()) for agent in agents]:
            agent.close(call, deadline)
        self._cluster.close()

    def forget_in_child(self) -> None:
        """See :meth:`WorkerKind.forget_in_child`; what is Ray's stays as it is, and is not used."""
        self._lock = threading.RLock()
        self._is_closed = True
        for agent in self._agents.values():
            # Not `give_up`: its lock may be held by a thread that this fork does not have.
            agent.why = "belongs to the process that this one was forked from"

    def _present(self) -> list[AgentClient]:
        """The agents that can be used, or may be a little later."""
        agents = list(self._agents.values())
        for agent in agents:
            if not agent.is_there and time.monotonic() - agent.begun > self._startup_timeout:
                agent.give_up(f"did not start an agent within {self._startup_timeout:g} s")
        return [agent for agent in agents if not agent.why]

    def _look(self) -> None:
        """Have an agent placed on each node that has none, and forget those that are no more.

        A node that has lost its agent gets another one only where no other node can be used.
        """
        with self._lock:
            nodes, self._looked = self._cluster.nodes(), time.monotonic()
            known = {node.node_id for node in nodes}
            if has_others := bool(self._present()):
                self._agents = {key: each for key, each in self._agents.items() if not each.why or key in known}
            most = None if self._most is None else -(-self._most // max(1, len(nodes)))
            for node in nodes:
                last = self._agents.get(node.node_id)
                if last is not None and (has_others or not last.why):
                    continue
                seats = self._cluster.seats(node, most)
                if seats > 0 and not self._is_closed:
                    self._agents[node.node_id] = AgentClient(self._cluster, node, seats)
