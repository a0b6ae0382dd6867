"""Frames: larger than the socket's buffers, in pieces, with arrays out of band."""

from __future__ import annotations

import pickle
import select
import socket
import threading
from typing import Any

import pytest

from envlanes.workers.channel import Channel

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair():
    """A channel that blocks, as a worker's, and one that does not, as the main process's."""
    left, right = socket.socketpair()
    right.setblocking(False)
    channels = Channel(left), Channel(right)
    yield channels
    for channel in channels:
        channel.close()


def receive(channel):
    """Wait for a message on a channel that does not block."""
    while (message := channel.receive()) is None:
        assert select.select([channel], [], [], 10)[0], "nothing came"
    return unpack(message)


def send_all(channel, content):
    """Send a message on a channel that does not block."""
    channel.send(pack(content))
    while not channel.flush():
        assert select.select([], [channel], [], 10)[1], "nothing is read"


def pack(content):
    """A message as the codec makes them, in short."""
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    return [payload, *[buffer.raw() for buffer in buffers]]


def unpack(message):
    assert message is not None
    return pickle.loads(message[0], buffers=message[1:])


def frame(content):
    """The bytes that a message is sent as."""
    left, right = socket.socketpair()
    with left, right:
        Channel(left).send(pack(content))
        return right.recv(1 << 16)


def in_thread(work, *arguments):
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 18, (1 << 18) + 1, 20 << 20])
def test_a_message_of_any_size_arrives_as_it_was(pair, size):
    worker, main = pair
    message = {"bytes": bytes(range(256)) * (size // 256) + b"x" * (size % 256), "number": size}
    thread = in_thread(worker.send, pack(message))
    assert receive(main) == message
    thread.join()
    thread = in_thread(send_all, main, message)
    assert unpack(worker.receive()) == message
    thread.join()


def test_messages_queue_behind_one_that_is_not_through(pair):
    worker, main = pair
    main.send(pack(b"x" * (5 << 20)))
    main.send(pack("second"))
    received: list[Any] = []
    thread = in_thread(lambda: received.extend(unpack(worker.receive()) for _ in range(2)))
    while not main.flush():
        assert select.select([], [main], [], 10)[1]
    thread.join()
    assert len(received[0]) == 5 << 20 and received[1] == "second"


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 30, (1 << 18) - 1, 1 << 18, (1 << 18) + 1])
def test_frames_are_told_apart_wherever_what_is_received_is_cut(cut):
    left, right = socket.socketpair()
    with left, right:
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        right.setblocking(False)
        channel = Channel(right)
        messages = [(number, b"x" * (40_000 + number)) for number in range(20)]
        sent = b"".join(frame(message) for message in messages)
        thread = in_thread(lambda: [left.sendall(part) for part in (sent[:cut], sent[cut:])])  # type: ignore[func-returns-value]
        assert [receive(channel) for _ in messages] == messages
        thread.join()
        assert channel.moved == len(sent)
