"""How the main process and the agent of a node make sure of each other before they exchange anything.

    main process                                          agent of a node
      (1)    <----------------------------  a number used once
      (2)    who it is, what it wants, a number used once, proof  ---->
      (3)    <----------------------------  proof

A proof is an HMAC, by a secret that reached the main process over Ray, of everything that was said before. So nobody
else is served, and nobody else's bytes are unpickled; but nothing is encrypted, and who sits between the two can read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

NONCE = 32  # bytes
_PROOF = hashlib.sha256().digest_size
_WISH = struct.Struct("!c16s96s")
_SAID = _WISH.size + NONCE

CONTROL, LANE = b"c", b"l"  # what a connection is for


class Refused(ConnectionError):
    """The other end does not know the secret."""


class Contact(NamedTuple):
    """How an agent is reached.

    Attributes:
        address: Of its node.
        port: Where it listens.
        secret: What it wants to be proven to be known.
    """

    address: str
    port: int
    secret: bytes


class Wish(NamedTuple):
    """What a connection is for.

    Attributes:
        purpose: ``CONTROL`` or ``LANE``.
        worker: Number of the worker that the lane is given, 16 bytes.
        lane: Name of the lane, for people.
    """

    purpose: bytes
    worker: bytes = b""
    lane: str = ""

    def packed(self) -> bytes:
        """The wish as bytes, a long name cut off."""
        return _WISH.pack(self.purpose, self.worker, self.lane.encode()[:96])

    @classmethod
    def of(cls, packed: bytes) -> Wish:
        """What :meth:`packed` packed."""
        purpose, worker, lane = _WISH.unpack(packed)
        return cls(purpose, worker, lane.rstrip(b"\0").decode(errors="replace"))


def introduce(connection: socket.socket, secret: bytes, wish: Wish) -> None:
    """The main process's side of the introduction, on a connection that blocks, with a timeout.

    Raises:
        Refused: The other end does not know the secret.
        EOFError, OSError: The connection has ended, or is too slow.
    """
    nonce = _received(connection, NONCE)
    said = wish.packed() + secrets.token_bytes(NONCE)
    connection.sendall(said + _proof(secret, b"main", nonce, said))
    if not hmac.compare_digest(_received(connection, _PROOF), _proof(secret, b"agent", nonce, said)):
        raise Refused("whoever listens at the agent's port does not know its secret")


def introduced(connection: socket.socket, secret: bytes) -> Wish:
    """The agent's side of the introduction, on a connection that blocks, with a timeout; what is wished of it.

    Raises:
        Refused: The other end does not know the secret.
        EOFError, OSError: The connection has ended, or is too slow.
    """
    nonce = secrets.token_bytes(NONCE)
    connection.sendall(nonce)
    answer = _received(connection, _SAID + _PROOF)
    said, proof = answer[:_SAID], answer[_SAID:]
    if not hmac.compare_digest(proof, _proof(secret, b"main", nonce, said)):
        raise Refused("a stranger called")
    connection.sendall(_proof(secret, b"agent", nonce, said))
    return Wish.of(said[: _WISH.size])


def call(contact: Contact, wish: Wish, patience: float) -> socket.socket:
    """A connection to an agent that knows the secret; it blocks, with a timeout.

    Args:
        contact: How the agent is reached.
        wish: What is wished of it.
        patience: Seconds for each step.

    Raises:
        Refused: Somebody else listens there.
        EOFError, OSError: Nobody does, or is too slow.
    """
    connection = socket.create_connection((contact.address, contact.port), patience)
    try:
        without_delay(connection)
        introduce(connection, contact.secret, wish)
        return connection
    except BaseException:
        connection.close()
        raise


def without_delay(connection: socket.socket) -> None:
    """Have small messages sent at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Lines:
    """JSON values, one a line, on a connection."""

    def __init__(self, connection: socket.socket) -> None:
        """Use this connection; whether it has a timeout is the caller's choice."""
        self.connection = connection
        self._buffer = b""

    def send(self, value: Any) -> None:
        """Send a value.

        Raises:
            OSError: The connection has ended, or is too slow.
        """
        self.connection.sendall(json.dumps(value).encode() + b"\n")

    def receive(self) -> Iterator[Any]:
        """The values that come with the next bytes.

        Raises:
            EOFError, OSError: The connection has ended, or nothing came in time.
        """
        data = self.connection.recv(1 << 16)
        if not data:
            raise EOFError("the other end closed the connection")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return map(json.loads, lines)


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError("the other end closed the connection")
        data += more
    return data


def _proof(secret: bytes, who: bytes, nonce: bytes, said: bytes) -> bytes:
    return hmac.new(secret, b"ragen 1 " + who + nonce + said, hashlib.sha256).digest()
