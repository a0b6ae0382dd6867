"""Bytes on both sides of a lane: a request is a number, an engine and an order; a reply a number and outcomes.

A message is a header, one pickle, and the buffers of its arrays, which are not copied into the pickle. What is plain
data travels as it is; anything else is sealed (:mod:`ragen.parallel.episode.sealed`), so that opening a message runs no
code of a user's, and one item that cannot travel costs that item alone.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any

from ragen.parallel.episode.outcome import Outcome, Raised
from ragen.parallel.episode.sealed import PlainPickler, Sealed
from ragen.parallel.episode.turn import named
from ragen.parallel.interrupts import let_signals_pass
from ragen.parallel.lanes import orders
from ragen.parallel.lanes.handle import Message, WorkerGone, WorkerHandle
from ragen.parallel.lanes.orders import Order, flat, unflat

_HEAD = struct.Struct("<QQ")  # number of the request, number of the engine
_ORDERS: dict[str, type[Order]] = {
    kind.__name__: kind
    for kind in (
        orders.Reset,
        orders.Play,
        orders.Call,
        orders.Fork,
        orders.Rebuild,
        orders.Unload,
        orders.CloseAll,
    )
}


def pack_request(number: int, engine: int, order: Order) -> Message:
    """A request as bytes.

    Raises:
        CannotTravel: Something that is asked cannot be pickled; nothing was sent then.
    """
    try:
        return _request(number, engine, order, seal=False)
    except Exception:  # whatever the pickling of something that is not plain raises
        return _request(number, engine, order, seal=True)


def unpack_request(message: Message) -> tuple[int, int, Order]:
    """What :func:`pack_request` packed."""
    number, engine = _HEAD.unpack_from(message[0])
    name, fields = _loaded(message)
    return number, engine, _ORDERS[name].of_fields(*fields)


def pack_reply(number: int, outcomes: Sequence[Outcome]) -> Message:
    """Outcomes as bytes; those that cannot be pickled, or not be opened again, are told as such."""
    try:
        return _packed(_rows(outcomes), number)
    except Exception:
        return _packed(_rows([_fit(outcome) for outcome in outcomes]), number)


def number_of(message: Message) -> int:
    """The number of the request that a message is, or answers."""
    return _HEAD.unpack_from(message[0])[0]


def unpack_reply(message: Message) -> list[Outcome]:
    """What :func:`pack_reply` packed; what cannot be opened here is told as raised by its environment."""
    kind, env_ids, values, seconds, usages = _loaded(message)
    if kind is not None:
        values = unflat(kind, values)
    if Sealed in set(map(type, values)):
        values = [_opened(value) if type(value) is Sealed else value for value in values]
    return [named(Outcome, row) for row in zip(env_ids, values, seconds, usages, strict=True)]


def portable(message: Message) -> Message:
    """A message as what every pickler takes, and what arrays can be made of that may be written to."""
    return [bytes(message[0]), *map(bytearray, message[1:])]


EXIT: Message = [_HEAD.pack(0, 0)]  # asks a worker to close its environments and end


def ask_to_exit(worker: WorkerHandle) -> bool:
    """Send :data:`EXIT` to a worker that is up and idle; whether it is on its way."""
    try:
        if worker.is_up and not worker.unsent():
            worker.send(EXIT)
            return not worker.unsent()
    except WorkerGone:
        pass
    return False


def _request(number: int, engine: int, order: Order, seal: bool) -> Message:
    return _packed((type(order).__name__, order.fields(seal)), number, engine)


def _packed(content: Any, number: int = 0, engine: int = 0) -> Message:
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    file.write(_HEAD.pack(number, engine))
    PlainPickler(file, protocol=5, buffer_callback=buffers.append).dump(content)
    return [file.getvalue(), *[buffer.raw() for buffer in buffers]]


def _loaded(message: Message) -> Any:
    return pickle.loads(memoryview(message[0])[_HEAD.size :], buffers=message[1:])


def _rows(outcomes: Sequence[Outcome]) -> tuple[Any, ...]:
    kind, values = flat([outcome.value for outcome in outcomes])
    env_ids, seconds, usages = [o[0] for o in outcomes], [o[2] for o in outcomes], [o[3] for o in outcomes]
    return kind, env_ids, values, seconds, usages


def _fit(outcome: Outcome) -> Outcome:
    """An outcome whose value may travel: sealed if it is not plain, and opened once, where that harms nobody else."""
    value, phase = outcome.value, "send"
    try:
        _packed(value)
        return outcome
    except BaseException as error:
        let_signals_pass(error)
    try:
        value = Sealed.of(value)
        phase = "receive"
        value.open()
    except BaseException as error:
        let_signals_pass(error)
        told = Raised.of(error, phase)
        value = Raised(phase, told.text, told.trace)
    return outcome._replace(value=value)


def _opened(value: Sealed) -> Any:
    try:
        return value.open()
    except BaseException as error:
        let_signals_pass(error)
        return Raised.of(error, "receive")
