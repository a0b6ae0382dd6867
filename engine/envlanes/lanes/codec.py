"""The wire format of a lane: a request has a number, an engine and an order; a reply has a number and outcomes.

A message is a header, one pickle, and the buffers of large arrays, which are not copied into the pickle. Plain data is
part of that pickle; anything else is pickled separately (:mod:`envlanes.episode.pickled`), so that opening a
message runs no user code, and an item that cannot be pickled fails alone. Turns and results of many environments are
sent by column, and a column of small arrays as one array.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import repeat
from operator import attrgetter
from typing import Any

from envlanes.episode.clock import Spent
from envlanes.episode.host import ResetOrder
from envlanes.episode.outcome import Batch, Outcome, Raised
from envlanes.episode.pickled import Pickled, PlainPickler, is_ours, pickled_items
from envlanes.episode.turn import named
from envlanes.interrupts import let_signals_pass
from envlanes.lanes import logs
from envlanes.lanes.handle import Message, WorkerGone, WorkerHandle
from envlanes.lanes.orders import Build, Call, CloseAll, Order, Play, Rebuild, Reset, Unload

_HEAD = struct.Struct("<QQ")  # number of the request, number of the engine
_ORDERS: dict[str, type[Order]] = {
    kind.__name__: kind for kind in (Build, Reset, Play, Call, Rebuild, Unload, CloseAll)
}


def pack_request(number: int, engine: int, order: Order) -> Message:
    """A request as bytes.

    Raises:
        CannotTravel: Part of the order cannot be pickled; nothing was sent.
    """
    try:
        return _packed(_taken_apart(order), number, engine)
    except Exception:  # whatever the pickling of something that is not plain raises
        return _packed(_taken_apart(_pickled_order(order)), number, engine)


def unpack_request(message: Message) -> tuple[int, int, Order]:
    """Unpack the result of :func:`pack_request`."""
    number, engine = _HEAD.unpack_from(message[0])
    name, *fields = pickle.loads(memoryview(message[0])[_HEAD.size :], buffers=message[1:])
    kind = _ORDERS[name]
    if kind is Play:
        env_ids, values = fields
        return number, engine, Play(list(zip(env_ids, from_columns(values), strict=True)))
    if kind is Reset:
        return number, engine, Reset([ResetOrder(*item) for item in fields[0]])
    return number, engine, kind(*fields)


def _taken_apart(order: Order) -> tuple[Any, ...]:
    """An order as plain data."""
    name = type(order).__name__
    if isinstance(order, Play):
        env_ids, actions = zip(*order.items, strict=True)
        return name, env_ids, to_columns(actions)
    if isinstance(order, Reset):
        return name, list(map(tuple, order.items))
    if isinstance(order, Rebuild):
        return name, order.loads, order.journals
    return name, order.items


def _pickled_order(order: Order) -> Order:
    """The same order with values that are not plain pickled, item by item."""
    if isinstance(order, Rebuild):
        return Rebuild(order.loads, pickled_items(order.journals))
    if isinstance(order, Reset):
        options = pickled_items([(item.env_id, item.options) for item in order.items])
        return Reset([item._replace(options=given) for item, (_, given) in zip(order.items, options, strict=True)])
    return order if isinstance(order, Unload) else type(order)(pickled_items(order.items))


def pack_reply(number: int, outcomes: Sequence[Outcome], spent: Mapping[str, Spent] = {}) -> Message:
    """A batch as bytes; outcomes that cannot be pickled, or opened again, become failures of their environments."""
    records = logs.taken()
    try:
        return _packed((_outcomes_apart(outcomes, spent), records), number)
    except Exception:  # whatever the pickling of something that is not plain raises
        return _packed((_outcomes_apart([_fit(outcome) for outcome in outcomes], spent), records), number)


def number_of(message: Message) -> int:
    """The number of the request that a message is, or answers."""
    return _HEAD.unpack_from(message[0])[0]


def unpack_reply(message: Message) -> Batch:
    """Unpack the result of :func:`pack_reply`, and log what was logged meanwhile.

    An outcome that cannot be unpickled becomes a failure.
    """
    found, records = pickle.loads(memoryview(message[0])[_HEAD.size :], buffers=message[1:])
    logs.handle(records)
    if found is None:
        return Batch([])
    env_ids, values, seconds, saved, tags, costs = found
    values = from_columns(values)
    if Pickled in set(map(type, values)):
        values = [_opened(value) if type(value) is Pickled else value for value in values]
    fields = zip(env_ids, values, seconds, saved or (None,) * len(values), strict=True)
    spent = dict(zip(tags, map(named, repeat(Spent), costs), strict=True))
    return named(Batch, (list(map(named, repeat(Outcome), fields)), spent))


def _outcomes_apart(outcomes: Sequence[Outcome], spent: Mapping[str, Spent]) -> Any:
    if not outcomes:
        return None
    env_ids, values, seconds, saved = zip(*outcomes, strict=True)
    columns = env_ids, to_columns(values), seconds, saved if any(saved) else None
    return *columns, list(spent), list(map(tuple, spent.values()))


def portable(message: Message) -> Message:
    """A message as types that every pickler accepts, and from which writable arrays can be made."""
    return [bytes(message[0]), *map(bytearray, message[1:])]


EXIT: Message = [_HEAD.pack(0, 0)]  # asks a worker to close its environments and end


def ask_to_exit(worker: WorkerHandle) -> bool:
    """Send :data:`EXIT` to a worker that is up and idle; returns whether it was sent."""
    try:
        if worker.is_up and not worker.unsent():
            worker.send(EXIT)
            return not worker.unsent()
    except WorkerGone:
        pass
    return False


def _packed(content: Any, number: int = 0, engine: int = 0) -> Message:
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    file.write(_HEAD.pack(number, engine))
    PlainPickler(file, protocol=5, buffer_callback=buffers.append).dump(content)
    return [file.getvalue(), *[buffer.raw() for buffer in buffers]] if buffers else [file.getvalue()]


def _fit(outcome: Outcome) -> Outcome:
    """An outcome ready for transport: a value that is not plain is pickled, and unpickled once as a test."""
    value, phase = outcome.value, "send"
    try:
        _packed(value)
        return outcome
    except BaseException as error:
        let_signals_pass(error)
    try:
        value = Pickled.of(value)
        phase = "receive"
        value.open()
    except BaseException as error:
        let_signals_pass(error)
        shown = Raised.of(error, phase)
        value = Raised(phase, shown.text, shown.trace)
    return outcome._replace(value=value)


def _opened(value: Pickled) -> Any:
    try:
        return value.open()
    except BaseException as error:
        let_signals_pass(error)
        return Raised.of(error, "receive")


# Columns


_SMALL = 8192  # bytes of an array up to which it is gathered with others: to gather a larger one would cost a copy
_IN_MESSAGE = 4096  # bytes of a gathered array that travel within the pickle
_ARRAYS, _DICTS, _TUPLES = range(3)
_form = attrgetter("dtype", "shape")
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


def to_columns(values: Sequence[Any]) -> tuple[str | None, list[Any]]:
    """Named tuples of one of the package's classes by column, with the name of the class; other values as they are."""
    kind = type(values[0])
    is_row = is_ours(kind) and bool(getattr(kind, "_fields", None))
    if not is_row or set(map(type, values)) != {kind}:
        return None, list(values)
    columns = [column if type(column[0]) in _PLAIN else packed(column) for column in zip(*values, strict=True)]
    return f"{kind.__module__}:{kind.__qualname__}", columns


def from_columns(values: tuple[str | None, list[Any]]) -> list[Any]:
    """The inverse of :func:`to_columns`."""
    name, columns = values
    if name is None:
        return columns
    each = [column if type(column) is tuple else unpacked(column) for column in columns]
    return list(map(named, repeat(_class_named(name)), zip(*each, strict=True)))


@lru_cache(maxsize=64)
def _class_named(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return getattr(import_module(module), qualname)


def packed(values: Sequence[Any]) -> tuple[Any, ...] | list[Any]:
    """Values as one array, or as columns with arrays, in a list; or the values in a tuple if that gains nothing."""
    kind = type(values[0])
    if kind.__module__ == "numpy":
        first = values[0]
        dtype, shape = getattr(first, "dtype", None), getattr(first, "shape", None)
        is_fit = dtype is not None and dtype.kind in "biufc" and 0 < first.nbytes <= _SMALL
        is_fit = is_fit and (kind.__name__ == "ndarray") == bool(shape)  # arrays with a shape, and scalars
        if not is_fit or set(map(type, values)) != {kind} or set(map(_form, values)) != {(dtype, shape)}:
            return tuple(values)
        import numpy as np

        whole = np.array(values, dtype)
        if whole.dtype.char != np.dtype(whole.dtype.str).char:  # a type that has the same name as another
            return tuple(values)
        content = whole.tobytes() if whole.nbytes <= _IN_MESSAGE else pickle.PickleBuffer(whole)  # type: ignore[arg-type]
        return [_ARRAYS, whole.dtype.str, content, whole.shape]
    if (kind is not dict and kind is not tuple) or not values[0] or set(map(type, values)) != {kind}:
        return tuple(values)
    if kind is tuple:
        if len(set(map(len, values))) > 1 or type(values[0][0]) in _PLAIN:
            return tuple(values)
        return [_TUPLES, None, [packed(column) for column in zip(*values, strict=True)]]
    keys = list(values[0])
    if _PLAIN.issuperset(map(type, values[0].values())) or any(list(value) != keys for value in values):
        return tuple(values)
    return [_DICTS, keys, [packed([value[key] for value in values]) for key in keys]]


def unpacked(column: tuple[Any, ...] | list[Any]) -> list[Any]:
    """The inverse of :func:`packed`: equal values of equal types; arrays are rows of one writable array."""
    if type(column) is tuple:
        return list(column)
    how, kind, content = column[:3]
    if how == _DICTS:
        return [dict(zip(kind, each, strict=True)) for each in zip(*map(unpacked, content), strict=True)]
    if how == _TUPLES:
        return list(zip(*map(unpacked, content), strict=True))
    import numpy as np

    array = np.frombuffer(content, kind).reshape(column[3])
    return list(array if array.flags.writeable else array.copy())
