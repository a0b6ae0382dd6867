"""The code that runs in a worker of any kind: it handles messages and returns replies.

One thread handles one request at a time. A worker serves all engines of the main process; each has a host of its own
here. The kind of worker transports the messages: :mod:`envlanes.kinds.process.worker_main` reads them from a
socket, :mod:`envlanes.kinds.executor` is called with them.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import traceback
from collections.abc import Sequence
from typing import Any

from envlanes.episode import program
from envlanes.episode.host import EnvHost
from envlanes.episode.outcome import Raised
from envlanes.temporary import use_temporary_folder
from envlanes.this_process import set_title
from envlanes.workers import codec, logs
from envlanes.workers.channel import Channel
from envlanes.workers.handle import Message, Progress
from envlanes.workers.orders import CloseAll

_server: Server | None = None  # of this process, where a kind calls functions instead of keeping the object
_channel: Channel | None = None  # likewise


class Server:
    """The hosts of this process, one for each engine, and where it is in its work."""

    def __init__(self, name: str, progress: Progress) -> None:
        """Serve as the worker of this name, and record the position in ``progress``."""
        self._name = name
        self._progress = progress
        self._env_types: set[str] = set()
        self._hosts: dict[int, EnvHost] = {}

    def handle(self, message: Message) -> Message | None:
        """Carry out a request.

        Returns:
            The reply; None if it asked this worker to end, whose environments are closed then.
        """
        number = codec.number_of(message)
        # Before the request is opened: the time that this takes counts for the first item.
        self._progress.begin(number)
        if not number:
            for each in self._hosts.values():
                each.close()
            logs.show_rest()
            return None
        _, engine, order = codec.unpack_request(message)
        if (host := self._hosts.get(engine)) is None:
            host = self._hosts[engine] = EnvHost(self._progress.mark, keeps_outer_rng=False)
        batch = order.carry_out(host)
        if isinstance(order, CloseAll):
            del self._hosts[engine]  # its number never comes back
        elif order.loads:
            self._env_types.update(part.env_type for part in order.loads)
            set_title(f"envlanes {self._name}: {', '.join(sorted(self._env_types))}")
        # Before the reply is packed: of several items, none is at fault for a hang or a crash from here on.
        self._progress.mark(len(order))
        return codec.pack_reply(number, *batch)

    def answer(self, channel: Channel) -> bool:
        """Carry out the next request of a channel; whether there may be another one.

        Raises:
            EOFError, OSError: The main process is gone.
        """
        message = channel.receive()
        reply = self.handle(message) if message is not None else None
        return reply is not None and channel.send(reply)


def _worker_init(
    configuration: Sequence[Message],
    name: str = "worker 0",
    memory: Any = None,
    folder: str = "",
    connection: socket.socket | None = None,
) -> None:
    """Initialize a worker's process, and build the environments that it is given.

    The initializer of executors. That of :mod:`envlanes.kinds.executor` is given none, since what is built here
    has no deadline of its own: it builds them by the same requests, made afterwards.

    Args:
        configuration: The requests that build and reset its environments: specs and seeds.
        name: Name of the worker.
        memory: Memory for :class:`Progress` that the main process shares, if it looks at it.
        folder: For temporary files; the main process removes it. "" leaves them where the system has them.
        connection: From where :func:`_worker_step_single_env` takes requests that it is not called with.

    Raises:
        BaseException: An environment could not be built, or reset.
    """
    global _server, _channel
    if folder:
        use_temporary_folder(folder)
    enter_worker_process(name)
    _server = Server(name, Progress(bytearray(Progress.SIZE) if memory is None else memory))
    for request in configuration:
        reply = _server.handle(request)
        batch = codec.unpack_reply(reply) if reply is not None else None
        for outcome in batch.outcomes if batch is not None else ():
            if isinstance(outcome.value, Raised):
                raise outcome.value.exception()
    if connection is not None:
        _channel = open_channel(connection)


def _worker_step_single_env(request: Message | None = None) -> Message | None:
    """Step single environments one after the other: all of the request's, which are a worker's environments in a turn.

    Other requests (resets, calls, rebuilding) are handled as well.

    Args:
        request: The request; None for the next one of the connection, which the reply goes to then.

    Returns:
        The reply with each environment's result, observation and time; None if the request asked this worker to end,
        or came through the connection.
    """
    assert _server is not None
    if request is not None:
        reply = _server.handle(request)
        return None if reply is None else codec.portable(reply)
    assert _channel is not None
    try:
        _server.answer(_channel)
    except BaseException as error:
        if not isinstance(error, EOFError | OSError):
            traceback.print_exc()
        _channel.close()
    if _channel.fileno() < 0:
        # The main process is gone; or this is a fork that an environment has let return. It must not go on to the
        # executor's queues, where it would take the worker's calls.
        os._exit(1)
    return None


def open_channel(connection: socket.socket) -> Channel:
    """In a worker: its end of the connection, over which it says hello."""
    connection.settimeout(None)  # `socket.setdefaulttimeout` may have set one
    connection.set_inheritable(False)
    channel = Channel(connection)
    if hasattr(os, "register_at_fork"):
        # A child that kept it could take this worker's messages, and hide its end.
        os.register_at_fork(after_in_child=channel.close)
    channel.send([b"%d" % os.getpid()])
    return channel


def enter_worker_process(name: str) -> None:
    """Set up a worker process: it ignores interrupts, and its title names the worker."""
    program.in_worker = True
    logs.send_records()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides what an interrupt ends
    set_title(f"envlanes {name}")
    gc.freeze()  # imported modules stay: collections need not look at them, nor unshare their memory
