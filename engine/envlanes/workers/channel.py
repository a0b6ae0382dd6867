"""Messages between two processes over a socket pair, without ever waiting where a deadline could not be kept.

A frame is a head (bytes that follow, number of the message's parts), the parts' lengths, then the parts: a payload and
the buffers that it refers to. Parts are sent from where they lie, and received into memory that was made for the whole
message, so that arrays are copied by the kernel alone. On a non-blocking socket :meth:`Channel.flush` and
:meth:`Channel.receive` do what can be done at once; on a blocking one they finish.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import weakref
from itertools import accumulate
from operator import attrgetter, methodcaller

from envlanes.workers.codec import EXIT
from envlanes.workers.handle import Ending, Message, WorkerGone, WorkerHandle

_HEAD = struct.Struct("<QQ")
_LENGTH = 8  # bytes of a part's length in a frame
_MAX_PARTS = 512  # below every system's limit on the parts of one sendmsg (1024 on Linux, macOS)
_bytes_of, _as_bytes = attrgetter("nbytes"), methodcaller("cast", "B")
_sendmsg = getattr(socket.socket, "sendmsg", lambda sock, parts: sock.send(parts[0]))  # not on Windows


class Channel:
    """One end of a socket pair.

    Attributes:
        moved: Bytes sent and received so far.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Use this connected stream socket; whether it blocks is the caller's choice."""
        self.moved = 0
        self._socket = sock
        self._outgoing: list[memoryview] = []
        self._frame = self._missing = memoryview(
            bytearray(_HEAD.size)
        )  # the incoming frame, and the part not yet received
        self._count: int | None = None  # number of its parts, once its head is here
        self._poll = None
        if sock.gettimeout() is None and hasattr(select, "poll"):
            # A `recv` that waits on a Unix socket is woken up once for nothing: as soon as the other end has taken what
            # was sent last, since there is room to write then. `poll` knows what it waits for.
            self._poll = select.poll()
            self._poll.register(sock, select.POLLIN)

    def fileno(self) -> int:
        """The socket's file descriptor, for ``poll``; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Start to send a message, whose memory must not change until it is sent.

        Returns:
            Whether all of it is on its way; if not, call :meth:`flush` once the socket can be written to.

        Raises:
            OSError: The other end is gone.
        """
        # No comprehensions here and below, each of which is a call of its own: this is done for every message.
        parts: list[memoryview] = list(map(memoryview, message))  # type: ignore[arg-type]
        lengths = list(map(_bytes_of, parts))
        size, count = _LENGTH * len(parts) + sum(lengths), len(parts)
        self._outgoing.append(memoryview(struct.pack(f"<{2 + count}Q", size, count, *lengths)))
        self._outgoing += map(_as_bytes, filter(_bytes_of, parts))
        return self.flush()

    def flush(self) -> bool:
        """Send what is left of the outgoing messages; see :meth:`send`."""
        while self._outgoing:
            try:
                sent = _sendmsg(self._socket, self._outgoing[:_MAX_PARTS])
            except BlockingIOError:
                return False
            self.moved += sent
            whole = 0
            while whole < len(self._outgoing) and sent >= self._outgoing[whole].nbytes:
                sent -= self._outgoing[whole].nbytes
                whole += 1
            del self._outgoing[:whole]
            if sent:
                self._outgoing[0] = self._outgoing[0][sent:]
        return True

    def receive(self) -> Message | None:
        """Receive a message.

        Returns:
            The message, whose parts can be written to, or None if it is not complete yet (only on a non-blocking
            socket).

        Raises:
            EOFError: The other end is gone.
        """
        while self._missing or self._count is None:
            if not self._missing:
                size, self._count = _HEAD.unpack(self._frame)
                self._frame = self._missing = memoryview(bytearray(size))
                continue
            if self._poll is not None:
                self._poll.poll()
            try:
                received = self._socket.recv_into(self._missing)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError(str(error)) from error
            if not received:
                raise EOFError("the other end closed the connection")
            self.moved += received
            self._missing = self._missing[received:]
        frame, count = self._frame, self._count
        self._frame = self._missing = memoryview(bytearray(_HEAD.size))
        self._count = None
        lengths = struct.unpack_from(f"<{count}Q", frame)
        ends = list(accumulate(lengths, initial=_LENGTH * count))
        return list(map(frame.__getitem__, map(slice, ends, ends[1:])))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class PipeHandle(WorkerHandle):
    """A worker at the other end of a channel, which says hello with its process id.

    Attributes:
        ending: The worker's end, once it was ended.
    """

    def __init__(self, ours: socket.socket) -> None:
        """Use our end of a socket pair."""
        ours.setblocking(False)
        self._channel = Channel(ours)
        self.ending: Ending | None = None
        self._opened = contextlib.ExitStack()  # closed with the handle
        self._opened.callback(self._channel.close)
        _handles.add(self)

    def send(self, message: Message) -> None:
        """See :meth:`WorkerHandle.send`."""
        try:
            self.unsent = not self._channel.send(message)
        except OSError as error:
            with contextlib.suppress(WorkerGone):
                self.receive()  # its hello, if that was not read yet: whether it was up decides what its end means
            raise WorkerGone(str(error)) from None
        finally:
            self.moved = self._channel.moved

    def receive(self) -> Message | None:
        """See :meth:`WorkerHandle.receive`."""
        cut: OSError | None = None
        try:
            if self.unsent:
                try:
                    self.unsent = not self._channel.flush()
                except OSError as error:
                    cut = error  # replies that the worker sent before it ended are still to be read
            message = self._channel.receive()
            if message is not None and not self.is_up:
                self.pid, self.is_up = int(bytes(message[0])), True
                message = self._channel.receive()
        except (EOFError, OSError) as error:
            raise WorkerGone(str(error)) from None
        finally:
            self.moved = self._channel.moved
        if message is None and cut is not None:
            raise WorkerGone(str(cut))
        return message

    def fileno(self) -> int:
        """The connection's descriptor; -1 once the worker was ended."""
        return self._channel.fileno()

    def ask_to_exit(self) -> bool:
        """See :meth:`WorkerHandle.ask_to_exit`: its end shows as an end of the connection."""
        if not self.is_up or self.unsent:
            return False
        with contextlib.suppress(WorkerGone):
            self.send(EXIT)
            return not self.unsent
        return False


_handles: weakref.WeakSet[PipeHandle] = weakref.WeakSet()  # also those that another thread is just making


def _forget_in_child() -> None:
    for handle in list(_handles):  # a copy of either end would hide the end of a worker, which is the parent's
        handle.ending = handle.ending or Ending(error="belongs to the process that this one was forked from")
        handle._opened.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
