"""When the turns of many environments are played: all together, or each trajectory at its own pace.

``Lockstep`` waits after every turn for the slowest reply and the slowest environment. ``Streaming`` is for backends
that answer requests one by one (``submit``)::

    env 0   ask ......... step ask .... step ask ............ step          replies arrive in a queue; whatever has
    env 1   ask ... step ask ....................... step ask .. step      arrived is played together, in the order
    env 2   ask ................................................. step      of environments, while the rest is under way

A trajectory depends on its seed and its replies alone, so both give the same rollouts, bit for bit; with ``Streaming``
a reply that does not come holds up its own trajectory alone. :mod:`~.overlapping` and :mod:`~.trees` are further
schedules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, cast

from ragen.errors import LimitReachedError
from ragen.llm_agent.backends.base import Reply, Request
from ragen.llm_agent.backends.streaming import StreamingBackend
from ragen.llm_agent.rollout.actor import BackendActor, exchange_of, name_requests, requests_of
from ragen.llm_agent.rollout.player import PromptWriter, Rollout, Schedule
from ragen.llm_agent.rollout.worker_modes import WorkerModes

Cache = dict[str, Any]


class Lockstep(Schedule):
    """Every turn waits for the slowest reply and for the slowest environment."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`."""
        player, active = rollout.player, rollout.episodes
        modes = WorkerModes.of(player.generation, player.max_turn, rollout.meta_info)
        for turn in range(player.max_turn):
            rollout.tell_turn(turn, len(active))
            told = rollout.meta_info if modes is None else modes.of_turn(turn)
            playing, active = play_together(rollout, active, told)
            rollout.tell_over(playing, active if turn + 1 < player.max_turn else [])
            if not active:
                break
        if modes is not None:
            player.end_turns(modes)
        rollout.tell_turn(turn + 1, len(active))


def play_together(
    rollout: Rollout, active: Sequence[Cache], told: Mapping[str, Any]
) -> tuple[Sequence[Cache], Sequence[Cache]]:
    """Play a turn of some environments, branching first where the rollout does.

    Args:
        rollout: What is played.
        active: Those that go on.
        told: What the actor is told.

    Returns:
        Those that played it, who may be more, and those that go on.
    """
    player, es_manager = rollout.player, rollout.es_manager
    playing: Sequence[Cache] = active
    talks: PromptWriter = rollout.ctx_manager
    if rollout.growth is not None:
        with player.timed("environments"), player.timeline.lanes(es_manager.lane_stats):
            playing, talks = rollout.growth.begin_turn(active)
    return playing, player.play_turn(es_manager, talks, playing, told)


MOST_AT_A_TIME = 64  # replies that are played together, so that nobody waits long for the next prompts
LOOK_UP_S = 1.0  # between two looks at the limits while nothing arrives


class Streaming(Schedule):
    """See the module."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`.

        ``on_turn`` is told the turn of the slowest trajectory, whenever something has arrived and every second. Where
        it raises :class:`~ragen.errors.LimitReachedError`, nothing more is asked, what is under way is waited for and
        played, and then it is raised again.
        """
        _StreamingRollout(rollout).run()


@dataclass
class _Replies:
    """Replies as ``ContextManager.get_env_inputs`` reads them."""

    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any] = field(default_factory=dict)
    batch: None = None


class _StreamingRollout:
    """One rollout: who waits for a reply, and what has arrived."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._player = rollout.player
        actor = self._player.actor
        assert isinstance(actor, BackendActor) and isinstance(actor.backend, StreamingBackend)
        self._actor, self._backend = actor, actor.backend
        self._sampling = actor.sampling(rollout.meta_info)
        self._waiting: dict[Future[Reply], tuple[Cache, Request]] = {}
        self._asked: Counter[int] = Counter()  # turn to how many wait for its reply
        self._arrived: SimpleQueue[Future[Reply]] = SimpleQueue()

    def run(self) -> None:
        ready = list(self._rollout.episodes)
        while ready or self._waiting:
            try:
                self._tell(ready)
            except LimitReachedError:
                self._land()
                raise
            self._ask(ready)
            arrived = self._next()
            ready = self._play(arrived) if arrived else []
        self._rollout.tell_turn(self._player.max_turn, 0)

    def _tell(self, ready: Sequence[Cache]) -> None:
        self._rollout.tell_turn(min([*self._asked, *map(_turn, ready)]), len(ready) + len(self._waiting))

    def _ask(self, ready: Sequence[Cache]) -> None:
        if not ready:
            return
        with self._player.timed("tokenising"):
            prompts = self._rollout.ctx_manager.get_prompts(ready, self._actor.needs_tokens)
            name_requests(prompts, ready)
            requests = requests_of(prompts)
        for cache, request in zip(ready, requests, strict=True):
            future = self._backend.submit(request, self._sampling)
            self._waiting[future] = (cache, request)
            self._asked[request.turn] += 1
            future.add_done_callback(self._arrived.put)

    def _next(self) -> list[tuple[Cache, Request, Reply]]:
        """What has arrived, in the order of environments; nothing where nothing does for a while."""
        with self._player.timed("generation"):
            try:
                futures = [self._arrived.get(timeout=LOOK_UP_S)]
            except Empty:
                return []
        while len(futures) < MOST_AT_A_TIME:
            try:
                futures.append(self._arrived.get_nowait())
            except Empty:
                break
        return self._taken(futures)

    def _taken(self, futures: Sequence[Future[Reply]]) -> list[tuple[Cache, Request, Reply]]:
        arrived = [(*self._waiting.pop(future), future.result()) for future in futures]
        self._asked -= Counter(request.turn for _, request, _ in arrived)
        return sorted(arrived, key=lambda each: each[1].env_id)

    def _play(self, arrived: Sequence[tuple[Cache, Request, Reply]]) -> list[Cache]:
        """Play what has arrived; those that go on."""
        player, es_manager = self._player, self._rollout.es_manager
        with player.timed("tokenising"):
            replies = self._actor.noted([request for _, request, _ in arrived], [reply for *_, reply in arrived])
            inputs = self._rollout.ctx_manager.get_env_inputs(cast(Any, _batch_of(arrived, replies)))
        failed = {request.env_id: reply.error for _, request, reply in arrived if reply.error is not None}
        player.failures.update(failed)
        answered = [each for each in inputs if each["env_id"] not in failed]
        with player.timed("environments"), player.timeline.lanes(es_manager.lane_stats):
            active = es_manager.step(answered) if answered else []
        going = [cache for cache in active if _turn(cache) < player.max_turn]
        self._rollout.tell_over([cache for cache, *_ in arrived], going)
        return going

    def _land(self) -> None:
        """Wait for what is under way, within bounds, and play it."""
        self._backend.settle()
        landed = [future for future in self._waiting if future.done() and not future.cancelled()]
        if landed:
            self._play(self._taken(landed))


def _batch_of(arrived: Sequence[tuple[Cache, Request, Reply]], replies: Sequence[Reply]) -> _Replies:
    exchanges = [
        exchange_of(request.messages, request.prompt_ids, reply)
        for (_, request, _), reply in zip(arrived, replies, strict=True)
    ]
    env_ids = [request.env_id for _, request, _ in arrived]
    return _Replies({"env_ids": env_ids, "response_texts": [reply.text for reply in replies], "exchanges": exchanges})


def _turn(cache: Cache) -> int:
    return len(cache["history"]) - 1
