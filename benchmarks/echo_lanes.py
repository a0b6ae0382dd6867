"""Lanes that answer at once: a few processes hold the other ends of thousands of connections, and play nothing.

    main process                                    echo server (a few processes)
    +-----------------------+   a request           +---------------------------+
    | Lane -- EchoHandle ---+---------------------->| every environment of the  |
    | Lane -- EchoHandle ---+---------------------->| request has had its turn  |
    |  ... thousands        |<----------------------+---------------------------+
    +-----------------------+   a reply of the usual size

Whatever the main process does for a turn it does here too: it packs, sends through a socket, waits, receives, unpacks
and writes journals. So its side of very many environments can be measured where there is no room for their workers.
``es_manager.backend: echo_lanes:EchoKind`` names it.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ragen.errors import LaneStartError
from ragen.parallel.episode.host import ResetResult
from ragen.parallel.episode.outcome import Outcome, RowOf
from ragen.parallel.episode.turn import TurnResult
from ragen.parallel.episode.turn_row import TurnRowResult
from ragen.parallel.lanes import codec
from ragen.parallel.lanes.handle import Ending, LaneKind, Message, Position, WorkerGone, WorkerHandle
from ragen.parallel.lanes.orders import Order, Play, Rebuild, Reset
from ragen.parallel.lanes.row_order import PlayRow
from ragen.parallel.process.channel import Channel

SERVERS = "ECHO_LANES_SERVERS"  # environment variable: how many processes answer
ROOM = "######\n#O____#\n#_####\n#X_###\n#_P_##\n######\n"  # as long as a small Sokoban room
traffic: Counter[str] = Counter()  # messages and bytes of the main process, either way


class EchoHandle(WorkerHandle):
    """The main process's end of one connection."""

    is_up = True

    def __init__(self, connection: socket.socket) -> None:
        """Speak over this socket, whose other end a server has."""
        connection.setblocking(False)
        self._channel = Channel(connection)
        self._ending: Ending | None = None
        self._request, self._asked = 0, time.monotonic()

    def send(self, message: Message) -> None:
        """See :meth:`WorkerHandle.send`."""
        self._request, self._asked = codec.number_of(message), time.monotonic()
        traffic["messages"] += 1
        try:
            self._channel.send(message)
        except OSError as error:
            raise WorkerGone(str(error)) from None
        self._count()

    def fileno(self) -> int:
        """See :meth:`WorkerHandle.fileno`."""
        return self._channel.fileno()

    def unsent(self) -> bool:
        """See :meth:`WorkerHandle.unsent`."""
        return self._channel.is_sending()

    def receive(self) -> Message | None:
        """See :meth:`WorkerHandle.receive`."""
        try:
            self._channel.flush()
            message = self._channel.receive()
        except (EOFError, OSError) as error:
            raise WorkerGone(str(error)) from None
        self._count()
        traffic["messages"] += message is not None
        return message

    def position(self) -> Position | None:
        """See :meth:`WorkerHandle.position`: at its first item since it was asked."""
        return Position(self._request, 0, self._asked)

    def ask_to_exit(self) -> bool:
        """It need not be asked: the end of the connection is enough."""
        return False

    def end(self) -> Ending:
        """See :meth:`WorkerHandle.end`."""
        if self._ending is None:
            self._channel.close()
            self._ending = Ending("an echo server", 0)
        return self._ending

    def _count(self) -> None:
        traffic["bytes"] += self._channel.moved - self.moved
        self.moved = self._channel.moved


class EchoKind(LaneKind):
    """Starts no worker: hands connections to its servers in turns."""

    name = "echo"
    slots = 1 << 20
    is_remote = True

    def __init__(self) -> None:
        """Start the servers."""
        self._servers = [_Server() for _ in range(int(os.environ.get(SERVERS, "1")))]
        self._started = 0

    def start(self, lane: str, first: Message | None = None) -> EchoHandle:
        """See :meth:`LaneKind.start`."""
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                self._servers[self._started % len(self._servers)].hand_over(theirs)
        except OSError as error:
            raise LaneStartError(f"{lane}: {error} (descriptors: `ulimit -n`)") from error
        self._started += 1
        handle = EchoHandle(ours)
        if first is not None:
            handle.send(first)
        return handle

    def close(self) -> None:
        """See :meth:`LaneKind.close`."""
        for server in self._servers:
            server.close()


class _Server:
    """A process that answers; it ends when the connection to it does."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        path = [str(Path(__file__).parent), *sys.path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        call = [sys.executable, "-m", "echo_lanes", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(call, pass_fds=[theirs.fileno()], env=environment)

    def hand_over(self, connection: socket.socket) -> None:
        socket.send_fds(self._control, [b"\0"], [connection.fileno()])

    def close(self) -> None:
        self._control.close()
        self._process.wait()


def answered(order: Order) -> list[Outcome]:
    """What every environment of a request gives."""
    if isinstance(order, PlayRow):
        env_ids = order.row.env_ids
        return [Outcome(env_ids[0], RowOf(env_ids, TurnRowResult(list(map(_turn, env_ids)))), 1e-5 * len(env_ids))]
    if isinstance(order, Play):
        return [Outcome(env_id, _turn(env_id), 1e-5) for env_id, _ in order.items]
    if isinstance(order, Reset):
        return [Outcome(item[0], ResetResult(_shown(item[0]), _shown(item[0]), None), 1e-5) for item in order.items]
    if isinstance(order, Rebuild):
        return [Outcome(env_id, None) for index in range(len(order)) for env_id in order.envs_at(index)]
    return []


def _turn(env_id: int) -> TurnResult:
    info, shown = {"action_is_effective": True, "action_is_valid": True, "success": False}, _shown(env_id)
    return TurnResult(["Up"], False, -0.1, False, info, shown, shown)


def _shown(env_id: int) -> str:
    return f"{ROOM}{env_id}"  # another one for each, as rooms are: equal texts travel once


def serve(control: socket.socket) -> None:
    """Answer on every connection that is handed over, until ``control`` ends."""
    channels: dict[int, Channel] = {}
    poll = select.epoll()
    poll.register(control.fileno(), select.EPOLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == control.fileno():
                told, descriptors, _, _ = socket.recv_fds(control, 1, 1)
                if not told:
                    return
                for each in descriptors:
                    channels[each] = Channel(socket.socket(fileno=each))  # blocking: a reply is sent whole
                    poll.register(each, select.EPOLLIN)
            elif not _answer(channels[descriptor]):
                poll.unregister(descriptor)
                channels.pop(descriptor).close()


def _answer(channel: Channel) -> bool:
    """Answer one request; whether the connection lives."""
    try:
        message = channel.receive()
        assert message is not None
        if number := codec.number_of(message):
            channel.send(codec.pack_reply(number, answered(codec.unpack_request(message)[2])))
        return True
    except (EOFError, OSError):
        return False


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
