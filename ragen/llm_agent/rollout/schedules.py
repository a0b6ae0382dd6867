"""The order of turns: which trajectories wait for each other.

============= ================================== =====================================================
schedule      the actor is asked                 environments are stepped
============= ================================== =====================================================
``Lockstep``  in one batch                       all of them, once all replies are there
``Streaming`` request by request (``submit``)    all whose replies have arrived
============= ================================== =====================================================

A trajectory depends only on its seed and its replies, so if a reply depends only on its own prompt, all schedules
produce the same rollouts, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue

from ragen.errors import LimitReachedError
from ragen.llm_agent.backends.base import Reply, Request
from ragen.llm_agent.backends.batch import outputs_of, requests_of
from ragen.llm_agent.backends.streaming import StreamingBackend
from ragen.llm_agent.batches.dataproto import PromptBatch, object_array
from ragen.llm_agent.rollout.actor import Actor, BackendActor, WorkerModes
from ragen.llm_agent.rollout.player import Answers, Cache, Rollout, Schedule, turn_of

MOST_AT_A_TIME = 64  # maximum number of arrivals processed together, to limit waiting for the next prompt
LOOK_UP_S = 1.0  # seconds between checks of the limits while nothing arrives


def ordinary_schedule(actor: Actor) -> Schedule:
    """The schedule for an actor: streaming if its backend answers prompts one by one, else lockstep."""
    streams = isinstance(actor, BackendActor) and isinstance(actor.backend, StreamingBackend)
    return Streaming() if streams else Lockstep()


class Lockstep(Schedule):
    """Every turn waits for the slowest reply and for the slowest environment."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`."""
        player, active, turn = rollout.player, rollout.episodes, 0
        modes = WorkerModes(player.max_turn, rollout.meta_info)
        while active:
            rollout.report_turn(turn, len(active))
            active = rollout.step(active, player.ask(rollout.ctx_manager, active, modes.of_turn(turn)))
            turn += 1
        rollout.report_turn(turn, 0)
        player.end_turns(modes)


class Streaming(Schedule):
    """Each trajectory runs at its own pace; for backends that answer requests one by one."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`.

        ``on_turn`` is called with the turn of the slowest trajectory, whenever something has arrived and every second.
        If it raises :class:`~ragen.errors.LimitReachedError`, no more requests are sent, those under way are completed
        and played, and the error is raised again if that leaves an episode unfinished.
        """
        _Stream(rollout).play()


class _Stream:
    """The turns of one rollout."""

    def __init__(self, rollout: Rollout) -> None:
        actor = rollout.player.actor
        assert isinstance(actor, BackendActor) and isinstance(actor.backend, StreamingBackend)
        self._rollout, self._player, self._actor = rollout, rollout.player, actor
        self._backend: StreamingBackend = actor.backend
        self._active = {cache["env_id"]: cache for cache in rollout.episodes}
        self._turns = Counter(map(turn_of, rollout.episodes))  # how many are at a turn
        self._arrivals: SimpleQueue[tuple[Request, Future[Reply]]] = SimpleQueue()

    def play(self) -> None:
        ready: Sequence[Cache] = list(self._active.values())
        turns = 0
        while self._active:
            try:
                self._rollout.report_turn(min(self._turns), len(self._active))
            except LimitReachedError:
                self._backend.settle()
                while arrived := self._arrived():
                    self._take(arrived)
                if self._active:
                    raise
                break
            turns = max([turns, *(turn_of(cache) + 1 for cache in ready)])
            self._ask(ready)
            ready = self._take(self._arrived(LOOK_UP_S))
        self._rollout.report_turn(turns, 0)

    def _ask(self, ready: Sequence[Cache]) -> None:
        if not ready:
            return
        meta_info = self._rollout.meta_info
        with self._player.timed("tokenizing"):
            prompts, full = self._player.fitting_prompts(self._rollout.ctx_manager, ready, meta_info, tensors=False)
            requests = requests_of(prompts) if prompts is not None else []
        self._step([cache for cache in ready if cache["env_id"] in full], Answers({}, {}, full))
        sampling = self._actor.sampling(meta_info)
        for request in requests:
            future = self._actor.submit(request, sampling)
            future.add_done_callback(partial(self._arrives, request))

    def _arrives(self, request: Request, future: Future[Reply]) -> None:
        if not future.cancelled():
            self._arrivals.put((request, future))

    def _arrived(self, patience: float = 0.0) -> list[tuple[Request, Reply]]:
        """The replies that have arrived, by environment; empty if there are none for a while."""
        arrived = []
        try:
            if self._arrivals.empty() and patience:
                with self._player.timed("generation"):
                    arrived.append(self._arrivals.get(timeout=patience))
            while len(arrived) < MOST_AT_A_TIME:
                arrived.append(self._arrivals.get_nowait())
        except Empty:
            pass
        return sorted(((request, future.result()) for request, future in arrived), key=lambda each: each[0].env_id)

    def _take(self, arrived: Sequence[tuple[Request, Reply]]) -> list[Cache]:
        """Step the environments whose replies have arrived; returns the caches of those that go on."""
        if not arrived:
            return []
        outputs = self._outputs_of(arrived)
        with self._player.timed("tokenizing"):
            answers = Answers.of(self._rollout.ctx_manager, outputs)
        return self._step([self._active[request.env_id] for request, _ in arrived], answers)

    def _step(self, playing: Sequence[Cache], answers: Answers) -> list[Cache]:
        if not playing:
            return []
        self._turns.subtract(map(turn_of, playing))
        for cache in playing:
            del self._active[cache["env_id"]]
        going = self._rollout.step(playing, answers)
        self._active.update((cache["env_id"], cache) for cache in going)
        self._turns.update(map(turn_of, going))
        self._turns += Counter()  # removes turns without trajectories
        return going

    def _outputs_of(self, replies: Sequence[tuple[Request, Reply]]) -> PromptBatch:
        """Individual replies as a batch."""
        import numpy as np  # on demand: the command's help needs none

        requests = [request for request, _ in replies]
        with self._player.timed("tokenizing"):
            noted = self._actor.noted(requests, [reply for _, reply in replies])
        columns = {
            "env_ids": np.array([request.env_id for request in requests]),
            "messages_list": object_array(request.messages for request in requests),
            "prompt_ids": object_array(request.prompt_ids for request in requests),
        }
        return outputs_of(PromptBatch(columns), noted, 0)
