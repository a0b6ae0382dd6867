"""Messages between two processes over a socket pair, without ever waiting where a deadline could not be kept.

A frame is a head (bytes that follow, number of the message's parts), the parts' lengths, then the parts: a payload and
the buffers that it refers to. Parts are sent from where they lie, and received into memory that was made for the whole
message, so that arrays are copied by the kernel alone. On a non-blocking socket :meth:`Channel.flush` and
:meth:`Channel.receive` do what can be done at once; on a blocking one they finish.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from itertools import accumulate, pairwise
from typing import Any

from envlanes.workers.handle import Message, WorkerGone, WorkerHandle

_HEAD = struct.Struct("<QQ")
_LENGTH = struct.Struct("<Q")
_HEAD_OF_ONE = struct.Struct("<QQQ")  # the same for a message of one part, with its length
_SMALL = 1 << 14  # bytes that are copied sooner than put into a list
_CHUNK = 1 << 18
_MAX_PARTS = 512  # below every system's limit on the parts of one sendmsg


class Channel:
    """One end of a socket pair.

    Attributes:
        moved: Bytes sent and received so far.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Use this connected stream socket; whether it blocks is the caller's choice."""
        self.moved = 0
        self._socket = sock
        self._waiting = _poll_of(sock)
        self._outgoing: list[memoryview] = []
        self._chunk = memoryview(bytearray(_CHUNK))  # what was received ahead of the frame it belongs to,
        self._begin = self._end = 0  # from here to there
        self._frame: memoryview | None = None  # the incoming frame without its head, once that is here
        self._missing = memoryview(b"")  # its end, which is still to come
        self._count = 0  # of its parts

    def fileno(self) -> int:
        """The socket's file descriptor, for ``poll``."""
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Start to send a message, whose memory must not change until it is sent.

        Returns:
            Whether all of it is on its way; if not, call :meth:`flush` once the socket can be written to.

        Raises:
            OSError: The other end is gone.
        """
        if len(message) == 1 and not self._outgoing and type(part := message[0]) is bytes and len(part) <= _SMALL:
            frame = _HEAD_OF_ONE.pack(_LENGTH.size + len(part), 1, len(part)) + part
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                sent = 0
            self.moved += sent
            if sent == len(frame):
                return True
            self._outgoing.append(memoryview(frame)[sent:])
            return self.flush()
        parts = [memoryview(part) for part in message]
        lengths = b"".join(_LENGTH.pack(part.nbytes) for part in parts)
        size = len(lengths) + sum(part.nbytes for part in parts)
        self._outgoing.append(memoryview(_HEAD.pack(size, len(parts)) + lengths))
        self._outgoing += [part.cast("B") for part in parts if part.nbytes]
        return self.flush()

    def flush(self) -> bool:
        """Send what is left of the outgoing messages; see :meth:`send`."""
        while self._outgoing:
            try:
                sent = self._socket.sendmsg(self._outgoing[:_MAX_PARTS])
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
        while True:
            if self._frame is None and self._begin == self._end:
                self._begin = self._end = 0
            elif (message := self._complete()) is not None:
                return message
            room = self._missing if self._frame is not None else self._chunk[self._end :] if self._end else self._chunk
            if self._waiting is not None:
                self._waiting.poll()
            try:
                count = self._socket.recv_into(room)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError(str(error)) from error
            if not count:
                raise EOFError("the other end closed the connection")
            self.moved += count
            if self._frame is None:
                self._end += count
            else:
                self._missing = self._missing[count:]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _complete(self) -> Message | None:
        """The incoming message if all of it is here; None, with room for what is to come, if not."""
        if self._frame is None:
            here, begin = self._end - self._begin, self._begin
            if here < _HEAD.size:
                if here:
                    self._chunk[:here] = bytes(self._chunk[begin : self._end])
                self._begin, self._end = 0, here
                return None
            size, self._count = _HEAD.unpack_from(self._chunk, begin)
            begin += _HEAD.size
            end = begin + size
            if self._count == 1 and end <= self._end:
                self._begin = end
                return [bytearray(self._chunk[begin + _LENGTH.size : end])]
            self._frame = memoryview(bytearray(size))
            found = self._chunk[begin : min(end, self._end)]
            self._frame[: len(found)] = found
            self._missing = self._frame[len(found) :]
            self._begin = begin + len(found)
        if self._missing:
            return None
        frame, self._frame = self._frame, None
        first = _LENGTH.size * self._count
        lengths = (length for (length,) in _LENGTH.iter_unpack(frame[:first]))
        return [frame[begin:end] for begin, end in pairwise(accumulate(lengths, initial=first))]


class PipeHandle(WorkerHandle):
    """A worker at the other end of a channel, which says hello with its process id."""

    _channel: Channel

    def send(self, message: Message) -> None:
        """See :meth:`WorkerHandle.send`."""
        channel = self._channel
        try:
            self.unsent = not channel.send(message)
        except OSError as error:
            with contextlib.suppress(WorkerGone):
                self.receive()  # its hello, if that was not read yet: whether it was up decides what its end means
            raise WorkerGone(str(error)) from None
        finally:
            self.moved = channel.moved

    def receive(self) -> Message | None:
        """See :meth:`WorkerHandle.receive`."""
        channel = self._channel
        cut: OSError | None = None
        try:
            if self.unsent:
                try:
                    self.unsent = not channel.flush()
                except OSError as error:
                    cut = error  # what the worker sent before it ended is still to be read
            message = channel.receive()
            if message is not None and not self.is_up:
                self.pid, self.is_up = int(bytes(message[0])), True
                message = channel.receive()
        except (EOFError, OSError) as error:
            raise WorkerGone(str(error)) from None
        finally:
            self.moved = channel.moved
        if message is None and cut is not None:
            raise WorkerGone(str(cut))
        return message

    def fileno(self) -> int:
        """The connection's descriptor; -1 once the worker was ended."""
        return self._channel._socket.fileno()


def _poll_of(sock: socket.socket) -> Any:
    """What to wait with before reading from a socket that blocks; None where reading may wait by itself.

    Who waits in ``recv`` on a Unix socket is woken up once for nothing: as soon as the other end has taken what was
    sent last, since there is room to write then. ``poll`` knows what it waits for.
    """
    if sock.gettimeout() is not None or sock.family != getattr(socket, "AF_UNIX", None):
        return None
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    return waiting
