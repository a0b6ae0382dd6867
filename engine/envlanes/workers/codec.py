"""The wire format of a worker: a request has a number, an engine and an order; a reply has a number and outcomes.

A message is a header, one pickle, and the buffers of large arrays, which are not copied into the pickle. Plain data is
part of that pickle, so that opening a message runs no user code. If anything is not plain, items are pickled apart
(:mod:`envlanes.episode.pickled`): one whose own code raises as it is pickled or opened fails alone.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from envlanes.episode.clock import Spent
from envlanes.episode.outcome import Batch, Outcome, Raised, TimedOut
from envlanes.episode.pickled import NAMED, CannotTravel, Pickled
from envlanes.episode.turn import named
from envlanes.interrupts import let_signals_pass
from envlanes.workers import logs
from envlanes.workers.handle import Message, WorkerGone, WorkerHandle
from envlanes.workers.orders import Order, Rebuild

_HEAD = struct.Struct("<QQ")  # number of the request, number of the engine
_LARGE = 8192  # bytes of an array from which a part of its own costs less than one more copy, by measurement


def pack_request(number: int, engine: int, order: Order) -> Message:
    """A request as bytes.

    Raises:
        CannotTravel: Part of the order cannot be pickled; nothing was sent.
    """
    loads, items = (order.loads, order.journals) if isinstance(order, Rebuild) else ((), order.items)
    try:
        return _packed((type(order), loads, items), number, engine)
    except Exception:  # whatever the pickling of something that is not plain raises
        return _packed((type(order), loads, _apart(items)), number, engine)


def unpack_request(message: Message) -> tuple[int, int, Order]:
    """Unpack the result of :func:`pack_request`; the host opens items that were pickled apart when it comes to them."""
    number, engine = _HEAD.unpack_from(message[0])
    kind, loads, items = pickle.loads(memoryview(message[0])[_HEAD.size :], buffers=message[1:])
    return number, engine, Rebuild(loads, items) if kind is Rebuild else kind(items)


def _apart(items: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Items ``(env_id, Pickled)``, each of a whole item."""
    apart, failed = [], {}
    for item in items:
        try:
            apart.append((item[0], Pickled.of(item)))
        except Exception as error:
            failed[item[0]] = Raised.of(error, "send")
    if failed:
        raise CannotTravel(failed)
    return apart


def pack_reply(number: int, outcomes: Sequence[Outcome], spent: Mapping[str, Spent] = {}) -> Message:
    """A batch as bytes; outcomes that cannot be pickled, or opened again, become failures of their environments."""
    records, sums = logs.taken(is_plain), {tag: tuple(each) for tag, each in spent.items()}
    try:
        return _packed((list(map(tuple, outcomes)), sums, records), number)
    except Exception:  # whatever the pickling of something that is not plain raises
        return _packed((list(map(tuple, map(_fit, outcomes))), sums, records), number)


def number_of(message: Message) -> int:
    """The number of the request that a message is, or answers."""
    return _HEAD.unpack_from(message[0])[0]


def unpack_reply(message: Message, number: int | None = None) -> Batch | None:
    """Unpack the result of :func:`pack_reply`, and log what was logged meanwhile.

    An outcome that cannot be unpickled becomes a failure. The reply to another request than ``number`` is None.
    """
    if number is not None and _HEAD.unpack_from(message[0])[0] != number:
        return None
    fields, sums, records = pickle.loads(memoryview(message[0])[_HEAD.size :], buffers=message[1:])
    if records:
        logs.handle(records)
    outcomes = list(map(named, repeat(Outcome), fields))
    for index, outcome in enumerate(outcomes):
        if type(outcome[1]) is Pickled:
            outcomes[index] = outcome._replace(value=_opened(outcome[1]))
    return named(Batch, (outcomes, dict(zip(sums, map(named, repeat(Spent), sums.values()), strict=True))))


def portable(message: Message) -> Message:
    """A message as types that every pickler accepts, and from which writable arrays can be made."""
    return [bytes(message[0]), *map(bytearray, message[1:])]


# Plain data


_PLAIN: set[Any] = {complex, Raised, TimedOut}
_ours: tuple[str, ...] = ("envlanes.",)  # how modules' names begin whose values run no code of a user's


def trust(beginning: str) -> None:
    """Have values of further modules travel as the engine's own do: unpickling them runs no code of a user's.

    Called by the module of a :class:`~envlanes.episode.game.Game`, so that it is known wherever the game is.
    """
    global _ours
    _ours = (*_ours, beginning)


class PlainPickler(pickle.Pickler):
    """Pickles built-in types, NumPy's and a few of our own, which run no other code when they are unpickled."""

    def reducer_override(self, value: Any) -> Any:
        """Refuse any other type; the pickler does not call this for the most common built-in types.

        Raises:
            PicklingError: The value is not plain.
        """
        kind = type(value)
        if kind in _PLAIN:
            return NotImplemented
        origin = value if issubclass(kind, NAMED) else kind
        module = origin.__module__ or ""
        if origin in _PLAIN or module.partition(".")[0] == "numpy" or module.startswith(_ours):
            if origin is kind:  # of a few classes: from now on, their instances cost one look-up
                _PLAIN.add(kind)
            return NotImplemented
        raise pickle.PicklingError(f"a {kind.__qualname__} is not plain")


def is_plain(value: Any) -> bool:
    """Whether a value can be part of a message's own pickle."""
    try:
        PlainPickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except Exception:  # whatever a user's class raises as it is pickled
        return False
    return True


EXIT: Message = [_HEAD.pack(0, 0)]  # asks a worker to close its environments and end


def ask_to_exit(worker: WorkerHandle) -> bool:
    """Send :data:`EXIT` to a worker that is up and idle; returns whether it was sent."""
    try:
        if worker.is_up and not worker.unsent:
            worker.send(EXIT)
            return not worker.unsent
    except WorkerGone:
        pass
    return False


def _packed(content: Any, number: int = 0, engine: int = 0) -> Message:
    buffers: list[pickle.PickleBuffer] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:  # then the pickler copies it, else leaves it to the callback
        if memoryview(buffer).nbytes < _LARGE:
            return True
        buffers.append(buffer)
        return False

    file = io.BytesIO()
    file.write(_HEAD.pack(number, engine))
    PlainPickler(file, protocol=5, buffer_callback=is_small).dump(content)
    return [file.getvalue(), *map(pickle.PickleBuffer.raw, buffers)]


def _fit(outcome: Outcome) -> Outcome:
    """An outcome ready for transport: a value that is not plain is pickled, and unpickled once as a test.

    What hangs or ends its process as it is opened does so here, where a deadline runs, and not in the main process.
    """
    try:
        _packed(outcome.value)
        return outcome
    except BaseException as error:
        let_signals_pass(error)
    value, failure = _tried(lambda: Pickled.of(outcome.value), "send")
    if failure is None:
        _, failure = _tried(value.open, "receive")
    return outcome._replace(value=failure or value)


def _opened(value: Pickled) -> Any:
    found, failure = _tried(value.open, "receive")
    return found if failure is None else failure


def _tried(call: Callable[[], Any], phase: str) -> tuple[Any, Raised | None]:
    """The result of a user's code, or its failure, which travels as text: the exception itself may not."""
    try:
        return call(), None
    except BaseException as error:
        let_signals_pass(error)
        shown = Raised.of(error, phase)
        return None, Raised(phase, shown.text, shown.trace)
