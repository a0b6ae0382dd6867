"""Frames: larger than the socket's buffers, in pieces, with arrays out of band."""

from __future__ import annotations

import pickle
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ragen.parallel.wire import Channel, pack

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A channel that blocks, as a worker's, and one that does not, as the main process's."""
    left, right = socket.socketpair()
    right.setblocking(False)
    channels = Channel(left), Channel(right)
    yield channels
    for channel in channels:
        channel.close()


def receive(channel: Channel) -> Any:
    """Wait for a frame on a channel that does not block."""
    while (frame := channel.receive()) is None:
        assert select.select([channel], [], [], 10)[0], "nothing came"
    return frame.load()


def send_all(channel: Channel, message: Any) -> None:
    """Send a message on a channel that does not block."""
    channel.send(pack(message))
    while not channel.flush():
        assert select.select([], [channel], [], 10)[1], "nothing is read"


def in_thread(work: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 18, (1 << 18) + 1, 20 << 20])
def test_a_message_of_any_size_arrives_as_it_was(pair: Pair, size: int) -> None:
    worker, main = pair
    message = {"bytes": bytes(range(256)) * (size // 256) + b"x" * (size % 256), "number": size}
    thread = in_thread(worker.send, pack(message))
    assert receive(main) == message
    thread.join()
    thread = in_thread(send_all, main, message)
    frame = worker.receive()
    assert frame is not None and frame.load() == message
    thread.join()


@pytest.mark.parametrize("count", [1, 3, 600, 1500])
def test_arrays_arrive_as_they_were_however_many(pair: Pair, count: int) -> None:
    worker, main = pair
    images = [np.full((5, 4, 3), number % 256, np.uint8) for number in range(count)]
    thread = in_thread(worker.send, pack(images))
    received = receive(main)
    thread.join()
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(received, images, strict=True))
    assert all(image.dtype == np.uint8 for image in received)


def test_arrays_travel_out_of_band() -> None:
    image = np.zeros((1000, 1000, 3), np.uint8)
    parts = pack([image])
    *head, pixels = parts
    assert sum(map(len, head)) < 1000
    assert pixels.obj is image or np.shares_memory(np.asarray(pixels), image)


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.zeros(7)[::2], np.asfortranarray(np.ones((3, 4))), np.array(5)])
def test_odd_arrays_arrive_as_they_were(pair: Pair, array: np.ndarray) -> None:
    worker, main = pair
    worker.send(pack(("before", array, "after")))
    before, received, after = receive(main)
    assert (before, after) == ("before", "after")
    assert received.shape == array.shape and np.array_equal(received, array)


def test_what_arrived_can_be_written_to(pair: Pair) -> None:
    worker, main = pair
    worker.send(pack([np.zeros(5), np.zeros(5)]))
    first, second = receive(main)
    first += 1
    assert second.sum() == 0


def test_a_frame_that_comes_byte_by_byte_is_put_together() -> None:
    left, right = socket.socketpair()
    right.setblocking(False)
    channel = Channel(right)
    message = ["text", np.arange(10)]
    sent = b"".join(bytes(part) for part in pack(message))
    for byte in sent[:-1]:
        left.sendall(bytes([byte]))
        assert channel.receive() is None
    left.sendall(sent[-1:])
    text, numbers = receive(channel)
    assert text == "text" and numbers.tolist() == list(range(10))
    left.close()
    channel.close()


def test_frames_that_come_together_are_told_apart(pair: Pair) -> None:
    worker, main = pair
    for number in range(5):
        worker.send(pack((number, np.full(number, number))))
    got = [receive(main) for _ in range(5)]
    assert [(number, array.tolist()) for number, array in got] == [(n, [n] * n) for n in range(5)]


def test_a_full_socket_keeps_the_rest_for_later(pair: Pair) -> None:
    worker, main = pair
    assert main.send(pack(b"x" * (5 << 20))) is False
    assert main.is_sending()
    thread = in_thread(worker.receive)
    while not main.flush():
        assert select.select([], [main], [], 10)[1]
    thread.join()
    assert not main.is_sending()


def test_messages_queue_behind_one_that_is_not_through(pair: Pair) -> None:
    worker, main = pair
    main.send(pack(b"x" * (5 << 20)))
    main.send(pack("second"))
    received: list[Any] = []
    thread = in_thread(lambda: received.extend(worker.receive().load() for _ in range(2)))  # type: ignore[union-attr]
    while not main.flush():
        assert select.select([], [main], [], 10)[1]
    thread.join()
    assert len(received[0]) == 5 << 20 and received[1] == "second"


def test_what_cannot_be_pickled_is_refused_before_anything_is_sent(pair: Pair) -> None:
    worker, main = pair
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        worker.send(pack([np.zeros(5), lambda: None]))
    worker.send(pack("next"))
    assert receive(main) == "next"


@pytest.mark.parametrize("sent", [0, 1, 30])
def test_an_end_of_the_connection_is_told(pair: Pair, sent: int) -> None:
    worker, main = pair
    frame = b"".join(bytes(part) for part in pack("a message that is longer than thirty bytes"))
    worker._socket.sendall(frame[:sent])
    worker.close()
    with pytest.raises(EOFError):
        receive(main)


def test_sending_to_nobody_is_told(pair: Pair) -> None:
    worker, main = pair
    main.close()
    with pytest.raises(OSError):
        for _ in range(3):
            worker.send(pack(b"x" * (1 << 20)))
