"""The main process's end of one node: finds its agent, hears where its workers are, and learns of its end.

    opening  --the agent was found, and knows the secret-->  open  --+
       |                                                             |  the connection ended, or the node
       |  no agent could be placed, found or spoken to               |  was silent and Ray says it is dead
       +------------------------>  gone  <---------------------------+

Each link has a thread, which reads. What is asked of the agent waits in the thread that asks, never for long. A node
that is silent is not gone: its workers' deadlines go on, after a while that a slow network is allowed. Each beat is
answered by a ping, whose answer tells workers that what was sent to them before has come to their node.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import statistics
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from ragen.errors import LaneStartError
from ragen.parallel.nodes.agent import BEAT
from ragen.parallel.nodes.wire import CONTROL, Contact, Lines, Wish, call

log = logging.getLogger(__name__)

SILENCE = 5 * BEAT  # seconds without a beat after which a node is silent
_CONNECT_TIMEOUT = 10.0  # seconds
_PINGS = 5


@dataclass(frozen=True)
class Node:
    """A machine, or what Ray takes for one.

    Attributes:
        node_id: Ray's id of it, which no other node ever has.
        name: For people.
        address: In the cluster's network.
        amounts: What it has of each resource.
        is_head: Whether it is the head of the cluster.
    """

    node_id: str
    name: str
    address: str
    amounts: dict[str, float] = field(default_factory=dict, compare=False)
    is_head: bool = False


class Agents(Protocol):
    """What a link needs of whoever places agents."""

    def contact(self, node: Node, seats: int, given_up: threading.Event) -> Contact:
        """Place an agent, and wait until it is there; LaneStartError if it will not be."""

    def verdict(self, node: Node) -> str:
        """Why a silent node is dead, in words that follow its name; "" if it is not known to be."""

    def release(self, node: Node) -> None:
        """The agent of a node is not needed any more."""


class Stage(Enum):
    """How far a link is."""

    OPENING = "opening"
    OPEN = "open"
    GONE = "gone"


class Beat(NamedTuple):
    """Where a worker was when its agent last told.

    Attributes:
        number: Number of the request.
        item: Index of the item.
        age: Seconds since work on it had begun.
    """

    number: int
    item: int
    age: float


class Worker(Protocol):
    """What a link tells of its opening and end, in its own thread."""

    def wake(self) -> None:
        """The link is open."""

    def kill(self) -> None:
        """The link is gone."""

    def reached(self, sent: float, heard: float) -> None:
        """What main had sent to the node before ``sent`` was there before ``heard``, on ``time.monotonic()``."""


class _Question:
    def __init__(self) -> None:
        self.answered = threading.Event()
        self.value: Any = None


class Link:
    """The link to one node.

    Attributes:
        node: The node.
        seats: How many lanes have claimed a place there.
        stage: How far it is.
        why: Why it is gone, in words; "" while it is not.
        contact: How the agent is reached, once the link is open.
        opened: When it opened, on ``time.monotonic()``; None while it did not.
        heard: When the agent was last heard, likewise.
        beats: Where each worker was then.
        round_trip_s: Seconds that a message there and back takes.
        skew_s: Seconds by which the node's clock is ahead of ours, as far as messages can tell.
        workers: Those of this node that were not ended yet.
    """

    def __init__(self, node: Node, seats: int, cluster: Agents) -> None:
        """Begin to open it, in a thread of its own."""
        self.node, self.seats = node, seats
        self.stage, self.why = Stage.OPENING, ""
        self.contact: Contact | None = None
        self.opened: float | None = None
        self.heard = time.monotonic()
        self.beats: dict[str, Beat] = {}
        self.round_trip_s = self.skew_s = 0.0
        self.workers: set[Worker] = set()
        self._cluster = cluster
        self._closing = threading.Event()
        self._sending = threading.Lock()
        self._lines: Lines | None = None
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}
        self._pings: dict[int, float] = {}  # when each was sent that follows a beat
        self._thread = threading.Thread(target=self._run, name=f"ragen node {node.name}", daemon=True)
        self._thread.start()

    @property
    def is_silent(self) -> bool:
        """Whether the agent was not heard for a while."""
        return time.monotonic() - self.heard > SILENCE

    def ask(self, patience: float, does: str, **what: Any) -> Any:
        """Ask the agent something; its answer, or None if there is none in time.

        Args:
            patience: Seconds to wait for the answer; a silent agent is told and not waited for.
            does: What it is to do.
            what: With what.
        """
        question, number = _Question(), next(self._numbers)
        self._questions[number] = question
        try:
            if self.stage is not Stage.OPEN or not self._tell({"do": does, "number": number, **what}):
                return None
            question.answered.wait(0.0 if self.is_silent else patience)
            return question.value
        finally:
            self._questions.pop(number, None)

    def add(self, worker: Worker) -> None:
        """Tell this worker when the link is open, or gone; at once, if it is."""
        self.workers.add(worker)
        self._tell_worker(worker)

    def close(self, patience: float) -> None:
        """Let the agent end, with all its workers; bounded in time, and may be called twice."""
        self._closing.set()
        self._disconnect()
        if self._thread is not threading.current_thread():
            self._thread.join(patience)

    def forget_in_child(self) -> None:
        """In a fork of the main process: let go of the connection, which is the parent's."""
        self.stage, self.why = Stage.GONE, "it belongs to the process that this one is a fork of"
        if self._lines is not None:
            self._lines.connection.close()

    def _tell(self, command: Any) -> bool:
        with self._sending:
            try:
                assert self._lines is not None
                self._lines.send(command)
                return True
            except OSError:
                return False

    def _disconnect(self) -> None:
        if self._lines is not None:
            with contextlib.suppress(OSError):
                self._lines.connection.shutdown(socket.SHUT_RDWR)

    # The thread

    def _run(self) -> None:
        why = "was closed"
        try:
            contact = self._cluster.contact(self.node, self.seats, self._closing)
            with call(contact, Wish(CONTROL), _CONNECT_TIMEOUT) as connection:
                connection.settimeout(SILENCE)
                self._lines = Lines(connection)
                self._open(contact)
                while not self._closing.is_set() and not (why := self._hear()):
                    pass
        except EOFError:
            why = self._cluster.verdict(self.node) or "has lost its agent"
        except OSError as error:
            why = self._cluster.verdict(self.node) or f"cannot be reached ({error})"
        except LaneStartError as error:
            why = str(error)
        except Exception as error:  # whatever Ray raises while it ends
            why = f"cannot be used: {type(error).__name__}: {error}"
        finally:
            self._end("was closed" if self._closing.is_set() else why)

    def _open(self, contact: Contact) -> None:
        pings: list[tuple[float, float]] = []  # how long each took, and how far off the node's clock was in the middle
        for _ in range(_PINGS):
            begin, number, question = time.monotonic(), next(self._numbers), _Question()
            self._questions[number] = question
            self._tell({"do": "ping", "number": number})
            while not question.answered.is_set() and not self._closing.is_set():
                if why := self._hear():
                    raise LaneStartError(why)
            took = time.monotonic() - begin
            pings.append((took, question.value - (time.time() - took / 2)))
        self.round_trip_s, self.contact = statistics.median(took for took, _ in pings), contact
        self.skew_s = min(pings)[1]
        self.opened, self.stage = time.monotonic(), Stage.OPEN
        self._wake_workers()
        log.debug("node %s is there, a message and back takes %.1f ms", self.node.name, 1e3 * self.round_trip_s)

    def _hear(self) -> str:
        """Take what the agent says next; why it will say nothing more."""
        assert self._lines is not None
        try:
            for value in self._lines.receive():
                self.heard = time.monotonic()
                if "beat" in value:
                    self.beats = {token: Beat(*beat) for token, beat in value["beat"].items()}
                    self._ping()
                elif (sent := self._pings.pop(value["number"], None)) is not None:
                    for worker in list(self.workers):
                        worker.reached(sent, self.heard)
                elif (question := self._questions.pop(value["number"], None)) is not None:
                    question.value = value["value"]
                    question.answered.set()
        except TimeoutError:
            return self._cluster.verdict(self.node)
        return ""

    def _ping(self) -> None:
        number, now = next(self._numbers), time.monotonic()
        self._pings[number] = now
        self._tell({"do": "ping", "number": number})

    def _end(self, why: str) -> None:
        self.why, self.stage = why, Stage.GONE
        for question in list(self._questions.values()):
            question.answered.set()
        self._wake_workers()
        with contextlib.suppress(Exception):  # whatever Ray raises while it ends
            self._cluster.release(self.node)
        if why != "was closed":
            log.warning("node %s %s", self.node.name, why)

    def _wake_workers(self) -> None:
        for worker in list(self.workers):
            self._tell_worker(worker)

    def _tell_worker(self, worker: Worker) -> None:
        if self.stage is Stage.GONE:
            worker.kill()
        elif self.stage is Stage.OPEN:
            worker.wake()
