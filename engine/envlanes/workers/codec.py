"""The wire format of a worker: a request has a number, an engine and an order; a reply has a number and outcomes.

A message is a header, one pickle, and the buffers of large arrays, which are not copied into the pickle. Plain data is
part of that pickle, so that opening a message runs no user code. If anything is not plain, items are pickled apart
(:mod:`envlanes.episode.pickled`): one whose own code raises as it is pickled or opened fails alone.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np

from envlanes.episode.clock import Spent
from envlanes.episode.game import named
from envlanes.episode.outcome import Batch, Outcome, Raised, TimedOut
from envlanes.episode.pickled import NAMED, CannotTravel, Pickled
from envlanes.interrupts import let_signals_pass
from envlanes.workers import logs
from envlanes.workers.handle import Message
from envlanes.workers.orders import Order

_HEAD = struct.Struct("<QQ")  # number of the request, number of the engine
_LARGE = 8192  # bytes of an array from which a part of its own costs less than one more copy, by measurement
_FEW = 4  # rows below which taking columns costs more than it saves, by measurement
EXIT: Message = [_HEAD.pack(0, 0)]  # asks a worker to close its environments and end


def pack_request(number: int, engine: int, order: Order) -> Message:
    """A request as bytes.

    Raises:
        CannotTravel: Part of the order cannot be pickled; nothing was sent.
    """
    items = order.items
    try:
        rows = _columns(items) if len(items) >= _FEW else list(items)
        return _packed((type(order), order.loads, rows), number, engine)
    except Exception:  # of any kind: something is not plain
        return _packed((type(order), order.loads, _apart(items)), number, engine)


def unpack_request(message: Message) -> tuple[int, int, Order]:
    """Unpack the result of :func:`pack_request`; the host opens items that were pickled apart when it comes to them."""
    number, engine = _HEAD.unpack_from(message[0])
    kind, loads, items = pickle.loads(memoryview(message[0])[_HEAD.size :], buffers=message[1:])
    if type(items) is tuple:
        items = list(_rows(items))
    return number, engine, kind(items, loads)


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
        return _packed((_columns(outcomes) if len(outcomes) >= _FEW else list(outcomes), sums, records), number)
    except Exception:  # of any kind: something is not plain
        return _packed((list(map(_fit, outcomes)), sums, records), number)


def number_of(message: Message) -> int:
    """The number of the request that a message is, or answers."""
    return _HEAD.unpack_from(message[0])[0]


def unpack_reply(message: Message, number: int | None = None) -> Batch | None:
    """Unpack the result of :func:`pack_reply`, and log what was logged meanwhile.

    An outcome that cannot be unpickled becomes a failure. The reply to another request than ``number`` is None.
    """
    if number is not None and _HEAD.unpack_from(message[0])[0] != number:
        return None
    outcomes, sums, records = pickle.loads(memoryview(message[0])[_HEAD.size :], buffers=message[1:])
    if records:
        logs.handle(records)
    if type(outcomes) is tuple:
        outcomes = list(_rows(outcomes))
    for index, outcome in enumerate(outcomes):
        if type(outcome[1]) is Pickled:
            try:
                value = outcome[1].open()
            except BaseException as error:
                value = _failure(error, "receive")
            outcomes[index] = outcome._replace(value=value)
    return Batch(outcomes, dict(zip(sums, map(named, repeat(Spent), sums.values()), strict=True)))


def portable(message: Message) -> Message:
    """A message as types that every pickler accepts, and from which writable arrays can be made."""
    return [bytes(message[0]), *map(bytearray, message[1:])]


# Rows of tuples


_layout = attrgetter("dtype", "shape")


def _columns(rows: Sequence[Any]) -> Any:
    """Rows of the same kind of tuple as its columns, small arrays of one layout as one array, and all else as a list.

    A pickler calls Python for each tuple with names, and three times for each array: 128 results of CartPole take it
    340 us row by row, and 75 us by column.
    """
    kinds = set(map(type, rows))
    if len(kinds) != 1:
        return list(rows)
    (kind,), like = kinds, rows[0]
    if issubclass(kind, tuple):
        if like and (kind.__module__.startswith(_ours) or (kind is tuple and len(set(map(len, rows))) == 1)):
            return None if kind is tuple else kind, list(map(_columns, zip(*rows)))  # noqa: B905  # of one length
    elif (issubclass(kind, np.generic) or (kind is np.ndarray and like.ndim)) and like.nbytes < _LARGE:
        # Only kinds that an array holds as they are: a text loses its last NULs in one, and an object its identity.
        is_kept = like.dtype.kind in "biufcmM" and like.flags.c_contiguous
        if is_kept and [*map(_layout, rows)].count(_layout(like)) == len(rows):
            return np.array(rows, like.dtype)  # with its dtype, or one of another byte order would become native
    return list(rows)


def _rows(columns: Any) -> Iterable[Any]:
    """The inverse of :func:`_columns`; arrays are views of their column."""
    if type(columns) is not tuple:
        return columns  # type: ignore[no-any-return]
    kind, parts = columns
    rows = zip(*map(_rows, parts))  # noqa: B905
    return rows if kind is None else map(named, repeat(kind), rows)


# Plain data


_PLAIN: set[Any] = {complex, Raised, TimedOut}
_ours: tuple[str, ...] = ("envlanes.",)  # prefixes of modules whose values run no code of a user's


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
        _packed(value)
    except Exception:  # a user's class may raise anything as it is pickled
        return False
    return True


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

    A value that hangs or ends its process as it is opened does so here, at a deadline, and not in the main process.
    """
    if is_plain(outcome.value):
        return outcome
    phase = "send"
    try:
        value: Any = Pickled.of(outcome.value)
        phase = "receive"
        value.open()
    except BaseException as error:
        value = _failure(error, phase)
    return outcome._replace(value=value)


def _failure(error: BaseException, phase: str) -> Raised:
    """The failure of a user's code, as text: the exception itself may be what cannot travel."""
    let_signals_pass(error)
    shown = Raised.of(error, phase, travels=False)
    return Raised(phase, shown.text, shown.trace)
