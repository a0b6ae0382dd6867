"""Messages between two processes over a socket pair, without ever waiting where a deadline could not be kept.

A frame is a header (payload length, number of buffers, whether more follows), the buffers' lengths, the pickled
payload, then the buffers.
Arrays travel as pickle-5 buffers: they are written from and read into their own memory, and never copied through the
payload. On a non-blocking socket :meth:`Channel.flush` and :meth:`Channel.receive` do what can be done at once; on a
blocking one they finish.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from typing import Any

_HEAD = struct.Struct("<QI?")
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 18
_MAX_PARTS = 512  # below every system's limit on the parts of one sendmsg


class Frame:
    """A received message, not unpickled yet.

    Attributes:
        more: Whether it is a part of a message that another frame continues.
    """

    __slots__ = ("buffers", "more", "payload")

    def __init__(self, payload: memoryview, buffers: list[memoryview], more: bool) -> None:
        """Keep the received bytes."""
        self.payload = payload
        self.buffers = buffers
        self.more = more

    def load(self) -> Any:
        """Unpickle the message.

        Raises:
            Exception: Whatever unpickling raises.
        """
        return pickle.loads(self.payload, buffers=self.buffers)

    def __len__(self) -> int:
        return len(self.payload) + sum(map(len, self.buffers))


def pack(message: Any, more: bool = False, pickler: type[pickle.Pickler] = pickle.Pickler) -> list[memoryview]:
    """The parts of the frame of a message, ready to be sent.

    Args:
        message: What can be pickled.
        more: What the receiver finds in :attr:`Frame.more`.
        pickler: What pickles it.

    Raises:
        Exception: Whatever pickling raises; nothing was sent then.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    pickler(file, protocol=5, buffer_callback=buffers.append).dump(message)
    payload = file.getbuffer()
    raw = [buffer.raw() for buffer in buffers]
    lengths = b"".join(_LENGTH.pack(part.nbytes) for part in raw)
    return [memoryview(_HEAD.pack(len(payload), len(raw), more) + lengths), payload, *raw]


class Channel:
    """One end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        """Use this connected stream socket; whether it blocks is the caller's choice."""
        self._socket = sock
        self._outgoing: list[memoryview] = []
        self._incoming = bytearray()
        self._chunk = memoryview(bytearray(_CHUNK))
        self.moved = 0

    def fileno(self) -> int:
        """The socket's file descriptor, for ``poll``."""
        return self._socket.fileno()

    def send(self, parts: list[memoryview]) -> bool:
        """Start to send a packed frame.

        Returns:
            Whether all of it is on its way; if not, call :meth:`flush` once the socket can be written to.

        Raises:
            OSError: The other end is gone.
        """
        self._outgoing.extend(parts)
        return self.flush()

    def flush(self) -> bool:
        """Send what is left of the outgoing frame; see :meth:`send`."""
        while self._outgoing:
            try:
                sent = self._socket.sendmsg(self._outgoing[:_MAX_PARTS])
            except BlockingIOError:
                return False
            self.moved += sent
            while sent:
                part = self._outgoing[0]
                if sent < part.nbytes:
                    self._outgoing[0] = part[sent:]
                    break
                sent -= part.nbytes
                del self._outgoing[0]
            while self._outgoing and not self._outgoing[0].nbytes:
                del self._outgoing[0]
        return True

    def is_sending(self) -> bool:
        """Whether part of an outgoing frame is still here."""
        return bool(self._outgoing)

    def receive(self) -> Frame | None:
        """Receive a frame.

        Returns:
            The frame, or None if it is not complete yet (only on a non-blocking socket).

        Raises:
            EOFError: The other end is gone.
        """
        while (size := self._frame_size()) is None or len(self._incoming) < size:
            try:
                count = self._socket.recv_into(self._chunk)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError(str(error)) from error
            if not count:
                raise EOFError("the other end closed the connection")
            self._incoming += self._chunk[:count]
            self.moved += count
        return self._take(size)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _frame_size(self) -> int | None:
        lengths = self._lengths()
        if lengths is None:
            return None
        return _HEAD.size + _LENGTH.size * (len(lengths) - 1) + sum(lengths)

    def _lengths(self) -> list[int] | None:
        """Lengths of the payload and of each buffer, as soon as they are here."""
        if len(self._incoming) < _HEAD.size:
            return None
        payload, count, _ = _HEAD.unpack_from(self._incoming)
        if len(self._incoming) < _HEAD.size + _LENGTH.size * count:
            return None
        return [payload, *(length for (length,) in _LENGTH.iter_unpack(self._header_tail(count)))]

    def _header_tail(self, count: int) -> bytes:
        return bytes(self._incoming[_HEAD.size : _HEAD.size + _LENGTH.size * count])

    def _take(self, size: int) -> Frame:
        lengths = self._lengths()
        assert lengths is not None
        received, self._incoming = self._incoming, bytearray(self._incoming[size:])
        view = memoryview(received)
        at = _HEAD.size + _LENGTH.size * (len(lengths) - 1)
        parts = []
        for length in lengths:
            parts.append(view[at : at + length])
            at += length
        *_, more = _HEAD.unpack_from(received)
        return Frame(parts[0], parts[1:], more)
