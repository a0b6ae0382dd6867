"""A line between a caller and a service on the same machine: requests and answers without a call of Ray for each.

    caller                                            service
    connected(address) ---- its name --------------> Door: who has beaten under that name has the line
    Line.send(requests) ---------------------------> one frame
                        <--------------------------- one frame: all answers that were there in that round of the loop

A call of Ray costs both processes a good part of a millisecond. Where trajectories seldom ask at the same time there
is one for each turn, and a few hundred turns a second fill the processors: what answers are then late by is the time
that they wait for one. A frame on a socket costs a tenth.

The socket has a name that nobody can guess, which a service tells in its signs of life, and no file; it is not seen
from other machines and containers. Either end asks the kernel which user the other one is, before anything is read.
Where there is no such socket (another node, another system) there is no line, and Ray carries all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable

_HEAD = struct.Struct("<Q")  # bytes of the frame that follows
_LIMIT = 1 << 20  # bytes that are read ahead
_NAME = 64  # most bytes of a caller's name
_PATIENCE = 5.0  # seconds for a connection, and for a caller to say its name
_PEER = struct.Struct("3i")  # process, user and group

Visit = Callable[["Line", str], Awaitable[None]]


class Line:
    """One end of a connection, used in one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use these; :meth:`close` ends them."""
        self._reader, self._writer = reader, writer

    def send(self, payload: bytes) -> None:
        """Send a frame; never waits. What the other end does not read stays here."""
        self._writer.write(_HEAD.pack(len(payload)))
        self._writer.write(payload)

    async def receive(self) -> bytes:
        """The next frame.

        Raises:
            EOFError: The other end is gone.
        """
        try:
            (size,) = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise EOFError("the other end has closed the line") from error

    def close(self) -> None:
        """End the connection, after what was sent; may be called twice, also when the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._writer.close()


class Door:
    """Where callers of a service come in."""

    def __init__(self, visit: Visit) -> None:
        """Closed, so far.

        Args:
            visit: Has a caller's line and its name until it returns, which ends the line.
        """
        self._visit = visit
        self._opening = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> str:
        """Let callers in, from the first call on; the address, "" where there can be none."""
        async with self._opening:
            if self._server is None and hasattr(socket, "SO_PEERCRED"):
                address, listening = f"ragen-{secrets.token_hex(16)}", socket.socket(socket.AF_UNIX)
                try:
                    listening.bind(f"\0{address}")
                    self._server = await asyncio.start_unix_server(self._admit, sock=listening, limit=_LIMIT)
                    self.address = address
                except OSError:  # a sandbox that allows none
                    listening.close()
        return self.address

    def close(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        try:
            if _is_same_user(writer):
                size = _HEAD.unpack(await asyncio.wait_for(reader.readexactly(_HEAD.size), _PATIENCE))[0]
                if size <= _NAME:
                    await self._visit(line, (await asyncio.wait_for(reader.readexactly(size), _PATIENCE)).decode())
        except (TimeoutError, asyncio.IncompleteReadError, UnicodeDecodeError, OSError):
            return
        finally:
            line.close()


async def connected(address: str, name: str) -> Line | None:
    """A line to a service, for the caller of this name; None where there can be none."""
    if not address or not hasattr(socket, "SO_PEERCRED"):
        return None
    try:
        opening = asyncio.open_unix_connection(f"\0{address}", limit=_LIMIT)
        reader, writer = await asyncio.wait_for(opening, _PATIENCE)
    except (TimeoutError, OSError):  # it is on another machine
        return None
    line = Line(reader, writer)
    if not _is_same_user(writer):
        line.close()
        return None
    line.send(name.encode())
    return line


def _is_same_user(writer: asyncio.StreamWriter) -> bool:
    """Whether the process at the other end belongs to the user that this one belongs to."""
    try:
        told = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:  # it has gone already
        return False
    return _PEER.unpack(told)[1] == os.geteuid()
