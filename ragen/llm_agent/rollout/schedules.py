"""The order of turns: one loop, and schedules that determine which trajectories wait for each other.

A *unit* is a set of trajectories whose turns are played together. The loop writes a unit's prompts, calls the actor,
parses the replies, and steps the unit's environments once all of its replies have arrived; other units progress
independently::

    unit 0   ask ......... step ask .... step ask ............ step
    unit 1   ask ... step ask ....................... step ask .. step
    unit 2   ask ................................................. step

============= ======================= ============================================ ====================================
schedule      a unit is               the actor is asked                           environments are stepped
============= ======================= ============================================ ====================================
``Lockstep``  all trajectories        in one batch                                 in the main thread
``Streaming`` a trajectory            request by request (``submit``)              in the main thread, all that arrived
``Shards``    a part of them          request by request; in a batch for each      in a thread for each unit
                                      unit; or in batches of several units
============= ======================= ============================================ ====================================

A trajectory depends only on its seed and its replies, so if a reply depends only on its own prompt, all schedules
produce the same rollouts, bit for bit. Threads only call the actor and step environments: prompts, replies and
callbacks are handled by the thread that plays the rollout.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.pool import AsyncResult, ThreadPool
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ragen.errors import ContextFullError, InputError, LimitReachedError
from ragen.llm_agent.backends.base import Reply, Request
from ragen.llm_agent.backends.streaming import StreamingBackend
from ragen.llm_agent.rollout.actor import BackendActor, WorkerModes, exchange_of, reasons_of, requests_of
from ragen.llm_agent.rollout.player import Cache, Rollout, Schedule
from ragen.llm_agent.rollout.timeline import Span
from ragen.llm_agent.tokens.dataproto import AnyBatch, PromptBatch, object_array

MOST_AT_A_TIME = 64  # maximum number of arrivals processed together, to limit waiting for the next prompt
LOOK_UP_S = 1.0  # seconds between checks of the limits while nothing arrives
_GRACE_S = 5.0  # seconds for pending calls of the actor when a rollout is interrupted
_REPLY, _OUTPUTS, _STEPPED, _ENDED = "reply", "outputs", "stepped", "ended"


class Lockstep(Schedule):
    """Every turn waits for the slowest reply and for the slowest environment."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`."""
        player = rollout.player
        modes = WorkerModes.of(player.generation, player.max_turn, rollout.meta_info)
        Turns(rollout, [Unit("rollout", rollout.episodes)], modes=modes).play()
        if modes is not None:
            player.end_turns(modes)


class Streaming(Schedule):
    """Each trajectory runs at its own pace; for backends that answer requests one by one."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`.

        ``on_turn`` is called with the turn of the slowest trajectory, whenever something has arrived and every second.
        """
        backend = streaming_backend(rollout)
        assert backend is not None
        Turns(rollout, [Unit("rollout", [cache]) for cache in rollout.episodes], backend=backend).play()


def streaming_backend(rollout: Rollout) -> StreamingBackend | None:
    """The backend of a rollout, if it answers prompts one by one; else None."""
    actor = rollout.player.actor
    backend = actor.backend if isinstance(actor, BackendActor) else None
    return backend if isinstance(backend, StreamingBackend) else None


@dataclass(eq=False)
class Unit:
    """Trajectories whose turns are played together.

    Attributes:
        track: Its track in the timeline.
        active: The caches of its active trajectories.
        turn: The turn that it plays; the first one if there are several.
        playing: The caches of the trajectories that play the turn.
        since: When its prompts were due, on ``time.perf_counter()``.
        missing: Number of missing replies.
        inputs: The received replies, as inputs of environments, by env_id.
    """

    track: str
    active: Sequence[Cache]
    turn: int = 0
    playing: Sequence[Cache] = ()
    since: float = 0.0
    missing: int = 0
    inputs: dict[int, dict[str, Any]] = field(default_factory=dict)


class _Event(NamedTuple):
    """An arrival: replies of units, units that were stepped, or units of which an episode ended before its turn."""

    kind: str
    units: Sequence[Unit]
    result: Any = None
    error: BaseException | None = None


class Gathering(NamedTuple):
    """How prompts of several shards are combined into batches.

    Attributes:
        max_batch_size: Maximum number of prompts of a batch; None for no limit.
        max_wait: Maximum seconds that prompts wait for those of other shards.
    """

    max_batch_size: int | None
    max_wait: float


_Prompt = tuple[Unit, Cache]  # of a trajectory of a unit


class Turns:
    """The turns of one rollout.

    Attributes:
        errors: With ``shards``, the errors of units that could not continue.
    """

    def __init__(
        self,
        rollout: Rollout,
        units: Sequence[Unit],
        *,
        modes: WorkerModes | None = None,
        backend: StreamingBackend | None = None,
        shards: Gathering | None = None,
    ) -> None:
        """Store the parts.

        Args:
            rollout: The rollout.
            units: Its units.
            modes: The modes of a single unit's batches for the actor's workers.
            backend: A backend called request by request; None calls the actor with batches.
            shards: Steps each unit in its own thread, and determines batches; None for neither.
        """
        self._rollout, self._player, self._modes = rollout, rollout.player, modes
        self._backend, self._shards = backend, shards
        self._ready = [unit for unit in units if unit.active]
        self._asked: set[Unit] = set()
        self._stepping: set[Unit] = set()
        self._asks_in_threads = shards is not None and backend is None and self._player.actor.thread_safe
        self._failed: dict[int, str] = {}
        self._prompts: list[_Prompt] = []  # which wait for others to share their batch
        self._unit_of: dict[int, Unit] = {}
        self._at: Counter[int] = Counter()  # turn to how many units are there
        self._active = sum(len(unit.active) for unit in self._ready)
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._is_landing = False
        self._calls: list[tuple[str, AsyncResult[None]]] = []  # in threads, under way
        self._pool = ThreadPool(len(self._ready)) if shards is not None else None
        self.errors: dict[Unit, BaseException] = {}
        for unit in self._ready:
            self._move(unit, None)

    def play(self) -> None:
        """Play the turns to the end.

        If ``on_turn`` raises :class:`~ragen.errors.LimitReachedError`, no more requests are sent, those under way are
        completed and played, and the error is raised again if that leaves an episode unfinished.
        """
        try:
            turns = self._play()
        except BaseException:
            self._wait_for_threads()
            raise
        finally:
            if self._pool is not None:
                self._pool.terminate()
        if not self.errors:
            self._rollout.report_turn(turns, 0)

    def _play(self) -> int:
        turns = 0
        while self._ready or self._asked or self._stepping:
            try:
                self._rollout.report_turn(min(self._at), self._active)
            except LimitReachedError:
                self._land()
                if not self._active:  # what was under way was all that was left
                    break
                raise
            turns = max([turns, *(unit.turn + 1 for unit in self._ready)])
            self._ask()
            self._take(self._arrived())
        return turns

    # Asking

    def _ask(self) -> None:
        """Request the replies of the units that are ready."""
        begun, self._ready = self._ready, []
        for unit in begun:
            self._begin_turn(unit)
        if self._backend is not None:
            self._submit(begun)
            return
        most = self._shards.max_batch_size if self._shards is not None else None
        if self._asks_in_threads:
            for unit in begun:
                for batch in _batches(_prompts(unit), most):
                    if (request := self._request(batch)) is not None:
                        self._in_thread(_OUTPUTS, [unit], request)
            return
        for unit in begun:
            self._prompts += _prompts(unit)
        if self._prompts and self._patience() <= 0:
            batch = next(_batches(self._prompts, most))
            self._prompts = self._prompts[len(batch) :]
            if (request := self._request(batch)) is not None:
                self._here(_OUTPUTS, list(dict.fromkeys(unit for unit, _ in batch)), request)

    def _begin_turn(self, unit: Unit) -> None:
        unit.playing = playing = unit.active
        unit.since, unit.missing, unit.inputs = time.perf_counter(), len(playing), {}
        self._unit_of.update((cache["env_id"], unit) for cache in playing)
        self._asked.add(unit)

    def _submit(self, units: Sequence[Unit]) -> None:
        """Submit requests to the backend one by one."""
        assert self._backend is not None and isinstance(self._player.actor, BackendActor)
        asking = [cache for unit in units for cache in unit.playing]
        if not asking:
            return
        with self._player.timed("tokenizing"):
            prompts = self._prompts_of(asking, tensors=False)
            requests = requests_of(prompts) if prompts is not None else []
        sampling = self._player.actor.sampling(self._rollout.meta_info)
        for request in requests:
            future = self._backend.submit(request, sampling)
            future.add_done_callback(partial(self._arrives, request))

    def _arrives(self, request: Request, future: Future[Reply]) -> None:
        if future.cancelled():
            return
        units, error = [self._unit_of[request.env_id]], future.exception()
        self._events.put(_Event(_REPLY, units, None if error else (request, future.result()), error))

    def _prompts_of(self, asking: Sequence[Cache], tensors: bool = True) -> AnyBatch | None:
        """The prompts of trajectories, without those that do not fit the model's context; None if none is left."""
        while asking:
            try:
                return self._player.prompts(self._rollout, asking, self._rollout.meta_info, tensors)
            except ContextFullError as error:
                left = [cache for cache in asking if cache["env_id"] != error.env_id]
                if len(left) == len(asking):
                    raise
                self._end(error.env_id, str(error))
                asking = left
        return None

    def _end(self, env_id: int, reason: str) -> None:
        """End an episode whose prompt does not fit the model's context; its unit goes on without it."""
        self._rollout.es_manager.end_episode(env_id, reason)
        unit = self._unit_of[env_id]
        unit.missing -= 1
        self._events.put(_Event(_ENDED, [unit]))

    def _request(self, batch: Sequence[_Prompt]) -> Callable[[], AnyBatch] | None:
        """A function that calls the actor with these prompts, which are written now; None if none fits the model."""
        with self._player.timed("tokenizing"):
            prompts = self._prompts_of([cache for _, cache in batch])
        if prompts is None:
            return None
        if self._modes is not None:
            prompts.meta_info = {**prompts.meta_info, **self._modes.of_turn(batch[0][0].turn)}
        tracks = ", ".join(dict.fromkeys(unit.track.removeprefix("shard ") for unit, _ in batch))
        rows = len(prompts.non_tensor_batch["env_ids"])

        def generate() -> AnyBatch:
            start = time.perf_counter()
            outputs = self._player.generate_sequences(prompts)
            track, note = "rollout", ""
            if self._shards is not None:
                track, note = "generator", f"{rows} prompts of shards {tracks}"
            self._player.timeline.add(Span(track, "generation", start, time.perf_counter(), note))
            replies = outputs.non_tensor_batch.get("env_ids")  # where they are missing, what reads them says so
            if replies is not None and len(replies) != rows:
                raise InputError(f"the actor returned {len(replies)} replies to {rows} prompts; expected one for each.")
            return outputs

        return generate

    def _patience(self) -> float:
        """Seconds to wait for the next arrival, or for prompts that could share a batch with prompts that are due."""
        if not self._prompts:
            return LOOK_UP_S
        if self._shards is None or not self._stepping:
            return 0.0
        most = self._shards.max_batch_size
        if most is not None and len(self._prompts) >= most:
            return 0.0
        return max(0.0, self._prompts[0][0].since + self._shards.max_wait - time.perf_counter())

    # Arrivals

    def _arrived(self) -> list[_Event]:
        """The arrivals; empty if there are none for a while."""
        events: list[_Event] = []
        try:
            if self._events.empty():
                with self._waiting():
                    events.append(self._events.get(timeout=self._patience()))
            while len(events) < MOST_AT_A_TIME:
                events.append(self._events.get_nowait())
        except Empty:
            pass
        return events

    def _waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._shards is not None else self._player.timed("generation")

    def _take(self, events: Sequence[_Event]) -> None:
        """Parse replies, step units with all their replies, and prepare the next turn of stepped units."""
        for event in events:
            if event.error is not None:
                self._give_up(event)
        came = [event for event in events if event.error is None]
        if replies := [event.result for event in came if event.kind == _REPLY]:
            self._read(self._outputs_of(sorted(replies, key=lambda each: each[0].env_id)))
        for event in came:
            if event.kind == _OUTPUTS:
                self._read(event.result)
            elif event.kind == _STEPPED:
                self._stepped(event.units, event.result)
        units = {unit for event in came if event.kind != _STEPPED for unit in event.units}
        if complete := [unit for unit in units & self._asked if not unit.missing]:
            self._step(sorted(complete, key=lambda unit: unit.playing[0]["env_id"]))

    def _give_up(self, event: _Event) -> None:
        """Handle an exception of the actor or the environments: stop its units, or the whole rollout."""
        assert event.error is not None
        if self._shards is None or not isinstance(event.error, Exception):
            raise event.error
        for unit in event.units:
            if unit in self._asked or unit in self._stepping:
                self._asked.discard(unit)
                self._stepping.discard(unit)
                self._prompts = [each for each in self._prompts if each[0] is not unit]
                self.errors[unit] = event.error
                self._move(unit, unit.turn, is_over=True)
                self._active -= len(unit.active)

    def _outputs_of(self, replies: Sequence[tuple[Request, Reply]]) -> PromptBatch:
        """Individual replies as a batch."""
        import numpy as np  # on demand: the command's help needs none

        actor, requests = self._player.actor, [request for request, _ in replies]
        assert isinstance(actor, BackendActor)
        with self._player.timed("tokenizing"):
            noted = actor.noted(requests, [reply for _, reply in replies])
        exchanges = [exchange_of(r.messages, r.prompt_ids, reply) for r, reply in zip(requests, noted, strict=True)]
        columns = {
            "env_ids": np.array([request.env_id for request in requests]),
            "response_texts": object_array(reply.text for reply in noted),
            "errors": object_array(reply.error for reply in noted),
            "out_of_context": object_array(reply.out_of_context for reply in noted),
            "exchanges": object_array(exchanges),
        }
        return PromptBatch(columns)

    def _read(self, outputs: AnyBatch) -> None:
        with self._player.timed("tokenizing"):
            inputs = self._rollout.ctx_manager.get_env_inputs(outputs)
        self._failed.update(reasons_of(outputs, "errors"))
        full = reasons_of(outputs, "out_of_context")
        for env_id, reason in full.items():
            self._end(env_id, reason)
        for each in (one for one in inputs if one["env_id"] not in full):
            unit = self._unit_of[each["env_id"]]
            unit.missing -= 1
            unit.inputs[each["env_id"]] = each

    # Stepping

    def _step(self, units: Sequence[Unit]) -> None:
        """Step the environments of units whose replies have arrived."""
        for unit in units:
            self._asked.discard(unit)
            self._stepping.add(unit)
            lost = {env_id: self._failed[env_id] for env_id in unit.inputs if env_id in self._failed}
            self._player.failures.update(lost)
            if self._shards is not None:
                now = time.perf_counter()
                self._player.timeline.add(Span(unit.track, "waiting", unit.since, now))
                if self._backend is not None:
                    note = f"{len(unit.inputs)} prompts of {unit.track}"
                    self._player.timeline.add(Span("generator", "generation", unit.since, now, note))
                self._in_thread(_STEPPED, [unit], partial(self._stepped_caches, [unit]))
        if self._shards is None:
            self._stepped(units, self._stepped_caches(units))

    def _stepped_caches(self, units: Sequence[Unit]) -> list[Cache]:
        """Step the environments of units; returns the caches of those still active."""
        failures, came = self._player.failures, {env_id: each for unit in units for env_id, each in unit.inputs.items()}
        ids = [cache["env_id"] for unit in units for cache in unit.playing]
        inputs = [came[env_id] for env_id in ids if env_id in came and env_id not in failures]
        with self._player.timeline.span(units[0].track, "environments"), self._recorded_lanes():
            return self._rollout.es_manager.step(inputs) if inputs else []

    def _stepped(self, units: Sequence[Unit], active: Sequence[Cache]) -> None:
        going = [cache for cache in active if turn_of(cache) < self._player.max_turn]
        playing = [cache for unit in units for cache in unit.playing]
        by_unit: dict[Unit, list[Cache]] = {unit: [] for unit in units}
        for cache in going:
            by_unit[self._unit_of[cache["env_id"]]].append(cache)
        for unit, on in by_unit.items():
            self._stepping.discard(unit)
            self._active += len(on) - len(unit.active)
            before, unit.active = unit.turn, on
            is_over = not on or self._is_landing
            self._move(unit, before, is_over)
            self._ready += [] if is_over else [unit]
        self._rollout.report_over(playing, going)

    def _move(self, unit: Unit, before: int | None, is_over: bool = False) -> None:
        """Move a unit to its next turn, or to its end."""
        if before is not None:
            self._at[before] -= 1
            self._at += Counter()  # removes turns without units
        if not is_over:
            unit.turn = min(map(turn_of, unit.active))
            self._at[unit.turn] += 1

    def _recorded_lanes(self) -> AbstractContextManager[None]:
        """Record the workers' activity for this thread within the block."""
        return self._player.timeline.lanes(partial(self._rollout.es_manager.lane_stats, self._shards is not None))

    # Threads, and ends

    def _here(self, kind: str, units: Sequence[Unit], function: Callable[[], Any]) -> None:
        try:
            event = _Event(kind, units, function())
        except Exception as error:
            event = _Event(kind, units, error=error)
        self._events.put(event)

    def _in_thread(self, kind: str, units: Sequence[Unit], function: Callable[[], Any]) -> None:
        assert self._pool is not None
        self._calls = [each for each in self._calls if not each[1].ready()]
        self._calls.append((kind, self._pool.apply_async(self._called, (kind, units, function))))

    def _called(self, kind: str, units: Sequence[Unit], function: Callable[[], Any]) -> None:
        try:
            self._here(kind, units, function)
        except BaseException as error:  # such as SystemExit, which must end the rollout, not only this thread
            self._events.put(_Event(kind, units, error=error))

    def _wait_for_threads(self) -> None:
        """Wait for running environment steps, at most for their time-outs, and briefly for the actor."""
        until = time.monotonic() + _GRACE_S
        for kind, call in self._calls:
            call.wait(None if kind == _STEPPED else max(0.0, until - time.monotonic()))

    def _land(self) -> None:
        """Send no more requests; wait, with a limit, for those under way, and play them."""
        self._is_landing, self._ready, self._prompts = True, [], []
        if self._backend is not None:
            self._backend.settle()
        while (self._asks_in_threads and self._asked) or not self._events.empty():
            self._take(self._arrived())
        landed = [unit for unit in self._asked if unit.inputs]
        self._asked.clear()
        if landed:
            self._step(sorted(landed, key=lambda unit: unit.playing[0]["env_id"]))
        while self._stepping:
            self._take(self._arrived())


def turn_of(cache: Cache) -> int:
    """The number of turns that a trajectory has played."""
    return len(cache["history"]) - 1


def _prompts(unit: Unit) -> list[_Prompt]:
    return [(unit, cache) for cache in unit.playing]


def _batches(prompts: Sequence[_Prompt], most: int | None) -> Iterator[Sequence[_Prompt]]:
    """Prompts in batches of at most ``most``."""
    size = most or max(1, len(prompts))
    return (prompts[start : start + size] for start in range(0, len(prompts), size))
