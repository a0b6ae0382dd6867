"""One actor for many turn loops: their requests are gathered into batches, and each gets its own rows back.

        shard 0 --+                                    +-- rows 0..15
        shard 1 --+--> queue --> batch --> actor -->   +-- rows 16..31
        shard 2 --+                                    +-- ...

**When a batch goes off.** As soon as nobody else can add to it (every client that joined waits, or is being answered),
it is full, or its oldest request has waited ``max_wait`` seconds.

**Who is in it.** Requests in the order in which they came, so nobody is overtaken and nobody waits for more than
one request of every other client. With one batch at a time in flight all that fit; where several may be in flight,
they are dealt out evenly to those that are free, since a request that shares a batch waits for the batch's slowest
answer. A request with more rows than a batch may have is cut; its other rows queue up behind what others asked for.

**Threads.** Callers block. The actor is called from threads that live from the first request to ``close``: exactly
one, unless the actor is known to be safe in several.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.closing import Closing
from ragen.errors import InputError, StateError
from ragen.llm_agent.backends.base import Backend
from ragen.llm_agent.rollout.actor import Actor
from ragen.llm_agent.tokens.dataproto import object_array

if TYPE_CHECKING:
    from verl import DataProto


def row_count(proto: DataProto) -> int:
    """How many rows a ``DataProto`` has, also where a column is a plain list."""
    if proto.batch is not None:
        return int(proto.batch.batch_size[0])
    return len(next(iter(proto.non_tensor_batch.values()), ()))


def rows_of(proto: DataProto, start: int, stop: int) -> DataProto:
    """Some rows of a ``DataProto``, columns that are plain lists included."""
    from verl import DataProto

    columns = {name: _objects(values[start:stop]) for name, values in proto.non_tensor_batch.items()}
    return DataProto(None if proto.batch is None else proto.batch[start:stop], columns, dict(proto.meta_info))


def joined(protos: Sequence[DataProto], pad_id: int, left: bool) -> DataProto:
    """The rows of several ``DataProto`` as one, in order.

    Args:
        protos: With the same columns.
        pad_id: Fills up ``input_ids``, ``responses`` and ``prompts`` where others are longer; zeros all other columns.
        left: Whether to fill up on the left, as prompts are, or on the right, as answers.
    """
    from tensordict import TensorDict
    from verl import DataProto

    if len(protos) == 1:
        return protos[0]
    columns = {
        name: _objects([value for proto in protos for value in proto.non_tensor_batch[name]])
        for name in protos[0].non_tensor_batch
    }
    tensors, rows = None, sum(map(row_count, protos))
    if protos[0].batch is not None:
        names = [name for name in protos[0].batch.keys() if all(name in p.batch.keys() for p in protos)]  # noqa: SIM118
        merged = {name: _stacked([proto.batch[name] for proto in protos], name, left, pad_id) for name in names}
        tensors = TensorDict(merged, batch_size=[rows])
    return DataProto(tensors, columns, dict(protos[0].meta_info))


def _stacked(parts: Sequence[Any], name: str, left: bool, pad_id: int) -> Any:
    """Tensors below each other, their last dimension padded to the widest."""
    import torch
    from torch.nn.functional import pad

    if parts[0].dim() < 2:
        return torch.cat(list(parts))
    width = max(part.shape[-1] for part in parts)
    filler = pad_id if name in ("input_ids", "responses", "prompts") else 0
    sides = [(width - part.shape[-1], 0) if left else (0, width - part.shape[-1]) for part in parts]
    return torch.cat([pad(part, side, value=filler) for part, side in zip(parts, sides, strict=True)])


def _objects(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else object_array(values)


DEFAULT_MAX_WAIT = 0.02
_JOIN_S = 5.0


@dataclass(frozen=True)
class Batch:
    """A batch that was answered.

    Attributes:
        start: When the actor was called, on ``time.perf_counter()``.
        end: When it had answered.
        rows: How many prompts it had.
        clients: Whose they were, in order.
    """

    start: float
    end: float
    rows: int
    clients: tuple[Hashable, ...]


@dataclass(eq=False)
class _Ticket:
    """A request on its way: which rows were asked already, and which answers came."""

    client: Hashable
    prompts: DataProto
    rows: int
    since: float
    asked: int = 0
    answers: dict[int, DataProto] = field(default_factory=dict)
    answered: int = 0
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def left(self) -> int:
        """Rows that nobody was asked yet."""
        return self.rows - self.asked


@dataclass(frozen=True)
class _Part:
    """Rows of a ticket that go into one batch."""

    ticket: _Ticket
    start: int
    rows: int

    @property
    def prompts(self) -> DataProto:
        return rows_of(self.ticket.prompts, self.start, self.start + self.rows)


class SharedLLMInferenceManager(Closing):
    """Answers the prompts of several threads with one actor; itself an actor, with ``generate_sequences``.

    A context manager; ``close`` may be called twice.

    Attributes:
        max_batch_size: The most prompts of a batch; None for no bound.
        max_wait: The longest that a request waits for others to share its batch, in seconds.
        max_in_flight: How many batches the actor may be asked at a time.
    """

    def __init__(
        self,
        actor_rollout_wg: Any,
        tokenizer: Any,
        max_batch_size: int | None = None,
        max_wait: float | None = None,
        max_in_flight: int | None = None,
        on_batch: Callable[[Batch], None] | None = None,
    ) -> None:
        """Take the actor; nothing is started before the first request.

        Args:
            actor_rollout_wg: Anything with ``generate_sequences(DataProto) -> DataProto`` that keeps the order of rows.
            tokenizer: Its padding token makes rows of different requests equally long.
            max_batch_size: See above; None for no bound.
            max_wait: See above; None is 0 where several batches may be in flight, else ``DEFAULT_MAX_WAIT``.
            max_in_flight: See above; None is 16 if the actor's backend says that it is ``thread_safe``, else 1.
            on_batch: Called, from whichever thread, with every batch that was answered.
        """
        self._actor = actor_rollout_wg
        self._pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.max_batch_size = max_batch_size
        self.max_in_flight = max_in_flight or (16 if is_thread_safe(actor_rollout_wg) else 1)
        if max_wait is None:
            max_wait = DEFAULT_MAX_WAIT if self.max_in_flight == 1 else 0.0
        self.max_wait = max_wait
        self._on_batch = on_batch
        self._changed = threading.Condition()
        self._queue: deque[_Ticket] = deque()
        self._clients: set[Hashable] = set()
        self._served: dict[Hashable, int] = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def join(self, client: Hashable) -> None:
        """Count a client as one that may ask; batches wait for it as long as ``max_wait`` allows."""
        with self._changed:
            self._clients.add(client)

    def leave(self, client: Hashable) -> None:
        """A client asks no more; may be called twice."""
        with self._changed:
            self._clients.discard(client)
            self._changed.notify_all()

    def generate_sequences(self, lm_inputs: DataProto, client: Hashable | None = None) -> DataProto:
        """Have prompts answered; blocks until all of them are.

        Args:
            lm_inputs: The prompts.
            client: Who asks; None for one that never joined. At most one request of a client at a time.

        Returns:
            The answers, in the order of the prompts.

        Raises:
            StateError: The manager is closed, or was while this waited.
            InputError: The actor gave another number of answers than it had prompts.
            Exception: Whatever the actor raised for the batch.
        """
        ticket = _Ticket(client, lm_inputs, row_count(lm_inputs), time.perf_counter())
        self._enqueue(ticket)
        try:
            ticket.done.wait()
        except BaseException:  # interrupted: nobody waits for it any more
            self._withdraw(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return joined([ticket.answers[start] for start in sorted(ticket.answers)], self._pad_id, left=False)

    def close(self) -> None:
        """Refuse what still waits, and end the threads; a call of the actor that runs is given a few seconds."""
        with self._changed:
            self._closed = True
            waiting, self._queue = list(self._queue), deque()
            self._changed.notify_all()
        for ticket in waiting:
            ticket.error = StateError("the inference manager was closed before this prompt was answered.")
            ticket.done.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    # The queue

    def _enqueue(self, ticket: _Ticket) -> None:
        with self._changed:
            if self._closed:
                raise StateError("the inference manager is closed; make a new one.")
            self._queue.append(ticket)
            if self._idle < len(self._queue) and len(self._threads) < self.max_in_flight:
                self._start_thread()
            self._changed.notify_all()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"ragen-inference-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._idle += 1
        thread.start()

    def _withdraw(self, ticket: _Ticket) -> None:
        with self._changed:
            if ticket in self._queue:
                self._queue.remove(ticket)

    # The threads that call the actor

    def _serve(self) -> None:
        while (parts := self._next_batch()) is not None:
            try:
                self._answer(parts)
            except BaseException as error:  # whatever it is, somebody waits for it
                self._deliver(parts, error)
            with self._changed:
                self._idle += 1

    def _next_batch(self) -> list[_Part] | None:
        """Wait for a batch to be complete; None when the manager is closed."""
        with self._changed:
            while not self._closed:
                patience = self._patience()
                if patience is not None and patience <= 0:
                    parts = self._take()
                    self._idle -= 1
                    return parts
                self._changed.wait(patience)
            return None

    def _patience(self) -> float | None:
        """Seconds that the queue may still grow; None while it is empty."""
        if not self._queue:
            return None
        if self.max_batch_size is not None and sum(ticket.left for ticket in self._queue) >= self.max_batch_size:
            return 0.0
        if self._queue[0].asked:
            return 0.0  # the rest of a request that was cut has waited already
        busy = {ticket.client for ticket in self._queue} | {client for client, count in self._served.items() if count}
        if self._clients and self._clients <= busy:
            return 0.0
        return self._queue[0].since + self.max_wait - time.perf_counter()

    def _take(self) -> list[_Part]:
        """The next batch, taken off the queue."""
        most = math.ceil(len(self._queue) / self._idle)
        room = self.max_batch_size or sum(ticket.left for ticket in self._queue)
        first, parts = self._queue[0], list[_Part]()
        while self._queue and len(parts) < most and room > 0 and _fit_together(first, self._queue[0]):
            ticket = self._queue[0]
            if parts and ticket.left > room and not ticket.asked:
                break  # whole in the next batch
            part = _Part(ticket, ticket.asked, min(ticket.left, room))
            parts.append(part)
            self._queue.popleft()
            ticket.asked += part.rows
            room -= part.rows
            self._served[ticket.client] = self._served.get(ticket.client, 0) + 1
            if ticket.left:
                self._queue.append(ticket)
                break
        return parts

    def _answer(self, parts: Sequence[_Part]) -> None:
        prompts = joined([part.prompts for part in parts], self._pad_id, left=True)
        start, rows = time.perf_counter(), sum(part.rows for part in parts)
        answers = self._actor.generate_sequences(prompts)
        if row_count(answers) != rows:
            raise InputError(f"the actor gave {row_count(answers)} answers to {rows} prompts; expected one for each.")
        if self._on_batch is not None:
            clients = tuple(part.ticket.client for part in parts)
            self._on_batch(Batch(start, time.perf_counter(), rows, clients))
        first = 0
        for part in parts:
            part.ticket.answers[part.start] = rows_of(answers, first, first + part.rows)
            first += part.rows
        self._deliver(parts, None)

    def _deliver(self, parts: Sequence[_Part], error: BaseException | None) -> None:
        with self._changed:
            for part in parts:
                ticket = part.ticket
                self._served[ticket.client] -= 1
                ticket.error = ticket.error or error
                ticket.answered += part.rows
                if error is not None and ticket in self._queue:
                    self._queue.remove(ticket)
                if ticket.answered == ticket.rows or error is not None:
                    ticket.done.set()
            self._changed.notify_all()


@contextmanager
def client_of(manager: SharedLLMInferenceManager, client: Hashable) -> Iterator[None]:
    """Leave in the end, whatever happens; :meth:`~SharedLLMInferenceManager.join` was called before."""
    try:
        yield
    finally:
        manager.leave(client)


def is_thread_safe(actor: Any) -> bool:
    """Whether an actor is known to allow calls from several threads at a time."""
    return isinstance(actor, Actor | Backend) and actor.thread_safe


def _fit_together(one: _Ticket, other: _Ticket) -> bool:
    """Whether two requests ask for the same kind of answer, in the same columns."""
    return one is other or (
        _plain(one.prompts.meta_info) == _plain(other.prompts.meta_info)
        and one.prompts.non_tensor_batch.keys() == other.prompts.non_tensor_batch.keys()
        and (one.prompts.batch is None) == (other.prompts.batch is None)
    )


def _plain(meta_info: Mapping[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in meta_info.items()}
