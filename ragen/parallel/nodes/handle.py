"""One worker on a node, as its lane knows it: a connection of its own, and what the node's agent says of it.

    lane's thread                              starter, a thread that ends with the start
    +-----------------------+                  +-------------------------------------+
    | send, receive, end    |                  | once the link is open: connects,    |
    |                       |   one byte       |   introduces itself, and leaves the |
    | fileno() is readable  | <----------------+   connection here                   |
    +-----------------------+                  +-------------------------------------+

From then on everything is the lane's thread's, but for :meth:`NodeHandle.kill`.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time

from ragen.parallel.lanes import codec
from ragen.parallel.lanes.handle import Ending, Message, Position, WorkerGone, WorkerHandle
from ragen.parallel.nodes.link import SILENCE, Link
from ragen.parallel.nodes.wire import LANE, Wish, call
from ragen.parallel.process.channel import Channel, next_reply

END_TIMEOUT = 5.0  # seconds that an agent gets to end a worker; it needs milliseconds
_CALL_TIMEOUT = 10.0  # seconds
_STACKS_TIMEOUT = 1.0  # seconds
_LONGEST_WAY = 30.0  # seconds after which a request is taken to have come to a node that lives, and does not say so


class NodeHandle(WorkerHandle):
    """A worker on a node; what is sent before there is a connection waits here."""

    def __init__(self, link: Link, lane: str) -> None:
        """Begin to start a worker.

        Args:
            link: To its node.
            lane: Name of its lane.

        Raises:
            OSError: There can be no more descriptors.
        """
        self.link, self._lane = link, lane
        self._number = secrets.token_bytes(16)
        self._token = self._number.hex()
        self._bell, self._ring = socket.socketpair()  # readable when there is a connection, or never will be
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        self._lock = threading.RLock()  # held for the moments in which the starter and the lane's thread agree
        self._is_starting = False
        self._connection: socket.socket | None = None
        self._failure = ""  # why there will be no connection
        self._channel: Channel | None = None
        self._unsent: list[Message] = []
        self._request, self._asked = 0, time.monotonic()  # the last one, and when it was sent
        self._arrival = (0.0, 0.0)  # when a request was sent, and when it was known to have come to the node
        self._ending: Ending | None = None
        link.add(self)

    @property
    def node(self) -> str:
        """See :attr:`WorkerHandle.node`."""
        return self.link.node.name

    @property
    def where(self) -> str:
        """See :attr:`WorkerHandle.where`."""
        return f"pid {self.pid} on {self.node}" if self.pid is not None else f"on {self.node}"

    # Messages

    def send(self, message: Message) -> None:
        """See :meth:`WorkerHandle.send`."""
        self._request, self._asked = codec.number_of(message), time.monotonic()
        try:
            if not self._is_connected():
                self._unsent.append(message)
                return
            assert self._channel is not None
            self._channel.send(message)
            self.moved = self._channel.moved
        except (EOFError, OSError) as error:
            raise WorkerGone(str(error)) from None

    def fileno(self) -> int:
        """See :meth:`WorkerHandle.fileno`."""
        return self._bell.fileno() if self._channel is None else self._channel.fileno()

    def unsent(self) -> bool:
        """See :meth:`WorkerHandle.unsent`."""
        return self._channel is not None and self._channel.is_sending()

    def receive(self) -> Message | None:
        """See :meth:`WorkerHandle.receive`."""
        try:
            if not self._is_connected():
                return None
        except (EOFError, OSError) as error:
            raise WorkerGone(str(error)) from None
        assert self._channel is not None
        return next_reply(self, self._channel)

    def _is_connected(self) -> bool:
        """Whether there is a connection now; what has waited for it is sent as soon as there is.

        Raises:
            EOFError, OSError: There will be none.
        """
        if self._channel is not None:
            return True
        with self._lock:
            if self._failure:
                raise EOFError(self._failure)
            if self._connection is None:
                return False
            self._channel = Channel(self._connection)
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self._channel.send(message)
        return True

    # The start, and other threads

    def wake(self) -> None:
        """The link is open: connect, in a thread that ends with it."""
        with self._lock:
            if self._is_starting or self._ending is not None:
                return
            self._is_starting = True
        try:
            threading.Thread(target=self._start, name=f"ragen starts {self._lane}", daemon=True).start()
        except RuntimeError as error:  # there can be no thread now
            self._fail(f"no thread could be started: {error}")

    def _start(self) -> None:
        contact = self.link.contact
        try:
            if contact is None:
                raise EOFError(self.link.why)
            connection = call(contact, Wish(LANE, self._number, self._lane), _CALL_TIMEOUT)
        except (OSError, EOFError) as error:
            self._fail(str(error))
            return
        connection.setblocking(False)
        with self._lock:
            if self._ending is None and not self._failure:
                self._connection = connection
                self._ring_once()
                return
        connection.close()

    def _fail(self, why: str) -> None:
        with self._lock:
            self._failure = self._failure or why
            self._ring_once()

    def _ring_once(self) -> None:
        with contextlib.suppress(OSError):
            self._ring.send(b"\0")

    def kill(self) -> None:
        """Have what is asked of the worker fail now, in whichever thread: the end of its connection ends it."""
        with self._lock:
            if self._connection is None:
                self._fail(self.link.why or "its call was cut")
                return
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    # What the agent says

    def reached(self, sent: float, heard: float) -> None:
        """What was sent to the node before ``sent`` was there before ``heard``."""
        asked = self._asked
        if sent >= asked and self._arrival[0] != asked:
            self._arrival = (asked, heard)

    def position(self) -> Position | None:
        """Where the worker is, by the agent's last beat; None before it is up.

        No time passes for it from one beat to the next, so that it is overdue only if a beat said so; and none before
        its request is known to have come to the node, however slow the network is. While the node is silent time goes
        on, after a while that it may need to be heard.
        """
        if self._ending is not None:
            return self._ending.position
        if not self.is_up:
            return None
        now, heard, beat = time.monotonic(), self.link.heard, self.link.beats.get(self._token)
        silent = max(0.0, now - max(heard, self._asked) - SILENCE)
        if beat is None or beat.number != self._request:  # it has not begun, or that was not told yet
            sent, arrived = self._arrival
            if sent != self._asked:
                arrived = self._asked + _LONGEST_WAY
            return Position(self._request, 0, now - max(0.0, heard - arrived) - silent)
        return Position(beat.number, beat.item, now - beat.age - silent)

    def stacks(self) -> str:
        """See :meth:`WorkerHandle.stacks`."""
        if self.pid is None or self._ending is not None:
            return ""
        return self.link.ask(_STACKS_TIMEOUT, "stacks", worker=self._token, pid=self.pid) or ""

    def ask_to_exit(self) -> bool:
        """See :meth:`WorkerHandle.ask_to_exit`."""
        return codec.ask_to_exit(self)

    def end(self) -> Ending:
        """See :meth:`WorkerHandle.end`."""
        if self._ending is None:
            ending = self._ended()
            with self._lock:
                self._ending = ending
            self._close()
        return self._ending

    def _ended(self) -> Ending:
        node, why = f"node {self.node}", self.link.why
        if not self._is_starting or self._failure:
            error = f"could not be started: {node} {why or self._failure or 'is still being reached'}"
            return Ending(error=error, is_shared=True)
        told = self.link.ask(END_TIMEOUT, "end", worker=self._token, was_up=self.is_up)
        if told is None:
            what = "ended" if self.is_up else "could not be started"
            where, error = self.where if self.is_up else "", f"{what}: {node} {why or 'does not answer'}"
            return Ending(where, error=error, is_shared=True)
        position = None
        if told["position"] is not None:
            number, item, age = told["position"]
            position = Position(number, item, time.monotonic() - age)
        where = f"{told['where']} on {self.node}" if told["where"] else self.where
        return Ending(where, told["status"], told["error"], position, is_shared=self.is_up and told["status"] is None)

    def forget_in_child(self) -> None:
        """See :meth:`WorkerHandle.forget_in_child`."""
        self._lock = threading.RLock()
        self._ending = self._ending or Ending(error="belongs to the process that this one is a fork of")
        self._close()

    def _close(self) -> None:
        self.link.workers.discard(self)
        for connection in (self._connection, self._bell, self._ring):
            if connection is not None:
                connection.close()
