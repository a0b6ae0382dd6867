"""What happens while lanes answer one after the other, with lanes whose workers are in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from typing import Any

import pytest

from envlanes.episode.outcome import Outcome
from envlanes.lanes import codec
from envlanes.lanes.exchange import Answer, Exchange, ask
from envlanes.lanes.failure import Cause, LaneFailure
from envlanes.lanes.handle import Ending, LaneKind, Message, Position, WorkerGone, WorkerHandle
from envlanes.lanes.lane import Lane, Request
from envlanes.lanes.orders import Play

LANES = 30


class Here(WorkerHandle):
    """Answers when the one before it has been heard."""

    is_up = True

    def __init__(self, before: list[Here]) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._before = before[-1] if before else None
        self.after: Here | None = None
        if self._before is not None:
            self._before.after = self
        before.append(self)
        self._reply: Message | None = None
        self.is_mute = False
        self._position = Position(0, 0, 0.0)

    def send(self, message: Message) -> None:
        number, _, order = codec.unpack_request(message)
        self._position = Position(number, 0, time.monotonic())
        self._reply = codec.pack_reply(number, [Outcome(item[0], "played") for item in order.items])  # type: ignore[attr-defined]
        if self._before is None:
            self.ring()

    def ring(self) -> None:
        if not self.is_mute:
            self._theirs.send(b"!")

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self) -> Message | None:
        if self.is_mute:
            return None
        if not self._ours.recv(1):
            raise WorkerGone
        if self.after is not None:
            self.after.ring()
        reply, self._reply = self._reply, None
        return reply

    def position(self) -> Position:
        return self._position

    def end(self) -> Ending:
        self._ours.close()
        self._theirs.close()
        return Ending("here", -9, position=self._position)


class Kind(LaneKind):
    name, slots = "here", LANES

    def __init__(self) -> None:
        self.all: list[Here] = []

    def start(self, lane: str) -> Here:
        return Here(self.all)

    def close(self) -> None:
        pass


@pytest.fixture
def lanes() -> Any:
    kind = Kind()
    made = [Lane(f"worker {index}", kind) for index in range(LANES)]
    for lane in made:
        lane.start()
    yield made
    for lane in made:
        lane.end()


def played(lanes: list[Lane], timeout: float = 20.0) -> list[Any]:
    replies = ask({lane: Request(1, Play([(index, "a")]), timeout) for index, lane in enumerate(lanes)})
    return [replies[lane] for lane in lanes]


def test_a_reply_has_nobody_look_at_the_lanes_that_have_not_answered(
    lanes: list[Lane], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: Counter[str] = Counter()
    deadline = Lane.deadline
    monkeypatch.setattr(Lane, "deadline", lambda lane: looks.update([lane.name]) or deadline(lane))
    for _ in range(2):
        assert all(isinstance(reply, Answer) for reply in played(lanes))
    assert not looks  # nothing can be overdue before the first item's time has passed


def test_a_lane_that_is_overdue_is_found_though_the_others_have_answered(lanes: list[Lane]) -> None:
    assert isinstance(lanes[-1].handle, Here)
    lanes[-1].handle.is_mute = True
    *others, last = played(lanes, 0.2)
    assert all(isinstance(reply, Answer) for reply in others)
    assert isinstance(last, LaneFailure) and (last.cause, last.index) == (Cause.TIMEOUT, 0)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_reply_that_is_on_its_way_has_its_time_from_when_it_is_waited_for(lanes: list[Lane], arrives: bool) -> None:
    handle = lanes[0].handle
    assert isinstance(handle, Here)
    handle.is_mute = True  # so that it does not answer at once
    later = threading.Timer(0.1, handle.ring)

    with Exchange() as exchange:
        exchange.claim(lanes[:1])
        exchange.send({lanes[0]: Request(1, Play([(0, "a")]), 5.0 if arrives else 0.3)})
        # The worker gets done with its item; main with its own share, long after an item's time.
        handle._position = Position(handle._position.request, 1, time.monotonic() - 60)
        handle.is_mute = not arrives
        later.start()
        exchange.listen()
        replies = exchange.replies()
    later.join()
    reply = replies[lanes[0]]
    assert isinstance(reply, Answer) if arrives else isinstance(reply, LaneFailure) and reply.cause == Cause.TIMEOUT


def test_a_lane_that_has_answered_may_be_asked_again_while_others_work(lanes: list[Lane]) -> None:
    first, second = lanes[:2]
    assert isinstance(second.handle, Here)
    second.handle.is_mute = True
    with Exchange() as exchange:
        exchange.claim([first, second])
        exchange.send({lane: Request(1, Play([(0, "a")]), 20.0) for lane in (first, second)})
        exchange.listen()
        for _ in range(2):
            assert list(exchange.replies({first})) == [first]
            exchange.claim([first])
            exchange.send({first: Request(1, Play([(0, "a")]), 20.0)})
            exchange.listen()
        assert list(exchange.replies({first})) == [first]
        second.handle.is_mute = False
        second.handle.ring()
        assert list(exchange.replies()) == [second]


def test_a_thread_whose_lane_is_at_work_does_not_wait_for_a_lane_of_another_thread(lanes: list[Lane]) -> None:
    taken, busy = lanes[:2]
    assert isinstance(busy.handle, Here)
    busy.handle.is_mute = True
    with taken.lock, Exchange() as exchange:
        assert exchange.claim([busy]) == [busy]
        exchange.send({busy: Request(1, Play([(0, "a")]), 20.0)})
        assert exchange.claim([taken]) == []
        busy.handle.is_mute = False
        busy.handle.ring()
        exchange.listen()
        assert list(exchange.replies()) == [busy]
