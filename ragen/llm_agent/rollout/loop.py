"""The loop of a rollout: prompts are built from states, the actor replies, replies become actions, environments step.

============= ================================== =====================================================
loop          the actor is asked                 environments are stepped
============= ================================== =====================================================
``lockstep``  in one batch                       all of them, once all replies are there
``stream``    request by request (``submit``)    all whose replies have arrived
============= ================================== =====================================================

A trajectory depends only on its seed and its replies, so if a reply depends only on its own prompt, both produce the
same rollouts, bit for bit. A :class:`DataProto` is made only for an actor of another project.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ragen.errors import ContextFullError, InputError, LimitReachedError, in_short
from ragen.llm_agent.backends.base import Reply, Request, StreamingBackend
from ragen.llm_agent.backends.batch import exchange_of, replies_of, requests_of
from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.rollout.actor import Actor, BackendActor

if TYPE_CHECKING:
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import EnvStateManager

MOST_AT_A_TIME = 64  # maximum number of arrivals processed together, to limit waiting for the next prompt
LOOK_UP_S = 1.0  # seconds between checks of the limits while nothing arrives

Cache = dict[str, Any]
TurnCallback = Callable[[], None]
OverCallback = Callable[[list[dict[str, Any]]], None]


@dataclass
class Answers:
    """The answers to some prompts, each by environment id.

    Attributes:
        inputs: The parsed replies.
        lost: The reason that there is no reply.
        full: The message for a prompt that did not fit the model's context.
    """

    inputs: dict[int, dict[str, Any]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    full: dict[int, str] = field(default_factory=dict)


@dataclass
class Rollout:
    """One rollout: who answers, who translates, what happened, and the callbacks.

    Attributes:
        actor: Answers the prompts.
        ctx_manager: Writes the prompts and parses the replies.
        max_turn: Maximum number of turns.
        meta_info: See :meth:`~ragen.llm_agent.rollout.proxy.LLMAgentProxy.play`, as for the callbacks.
        asks_failed: Whether the actor is asked about environments that failed in their reset, as in training.
        on_turn: Called before every turn.
        on_over: Called with the states of episodes that ended in a turn.
        seconds: Seconds of each part; by name.
        failures: The reason that an environment got no reply, by environment id.
    """

    actor: Actor
    ctx_manager: ContextManager
    max_turn: int
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    asks_failed: bool = False
    on_turn: TurnCallback = lambda: None
    on_over: OverCallback | None = None
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failures: dict[int, str] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count a block's time for a part: ``generation``, ``environments`` or ``tokenizing``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start

    def play(self, es_manager: EnvStateManager, episodes: Sequence[Cache]) -> None:
        """Play episodes, after their reset, to their end."""
        if not self.asks_failed:  # in training, a sampled reply ends these as well
            with self.timed("environments"):
                going = es_manager.end_failed(episodes)
            self._over(es_manager, episodes, going)
            episodes = going
        streams = isinstance(self.actor.backend, StreamingBackend) and isinstance(self.actor, BackendActor)
        (_stream if streams else _lockstep)(self, es_manager, list(episodes))

    def ask(self, asking: Sequence[Cache], mode: str | None = None) -> Answers:
        """Ask the actor about some environments in one batch.

        Args:
            asking: The caches of the environments.
            mode: Of the turn, for workers; see :mod:`~ragen.llm_agent.rollout.actor`.

        Raises:
            InputError: The actor answered others than it was asked about.
            BackendError: It answered more or fewer.
        """
        if isinstance(self.actor, BackendActor):
            requests, full = self.requests(asking)
            with self.timed("generation"):
                replies = self.actor.answer(requests, self.meta_info) if requests else []
        else:
            prompts, full = self._fitting(asking, self.ctx_manager.get_lm_inputs)
            if prompts is None:
                return Answers(full=full)
            requests = requests_of(prompts)
            prompts.meta_info = {**prompts.meta_info, **self.meta_info, **({"mode": mode} if mode else {})}
            with self.timed("generation"):
                outputs = self.actor.generate_sequences(prompts)
            found = replies_of(outputs, self.ctx_manager.tokenizer, len(requests))
            env_ids = map(int, outputs.non_tensor_batch.get("env_ids", ()))
            by_id, asked = dict(zip(env_ids, found, strict=False)), [request.env_id for request in requests]
            if {*by_id} != {*asked}:
                raise InputError(
                    f"the actor returned {len(found)} replies for the environments {in_short(sorted(by_id))}; expected "
                    f"one for each of {in_short(sorted(asked))}."
                )
            replies = [by_id[env_id] for env_id in asked]
        answers = self.parsed(requests, replies)
        answers.full |= full
        return answers

    def requests(self, asking: Sequence[Cache]) -> tuple[list[Request], dict[int, str]]:
        """The prompts that fit the model's context as requests, and why others do not, by environment id."""
        prompts, full = self._fitting(asking, self.ctx_manager.get_prompts)
        return [] if prompts is None else requests_of(prompts), full

    def _fitting(self, asking: Sequence[Cache], write: Callable[[Sequence[Cache]], Any]) -> tuple[Any, dict[int, str]]:
        """The prompts that fit, with tag and turn; None if none does; and why others do not."""
        full: dict[int, str] = {}
        with self.timed("tokenizing"):
            while asking:
                try:
                    prompts = write(asking)
                except ContextFullError as error:
                    if not any(cache["env_id"] == error.env_id for cache in asking):
                        raise
                    asking = [cache for cache in asking if cache["env_id"] != error.env_id]
                    full[error.env_id] = str(error)
                else:
                    prompts.non_tensor_batch["tags"] = object_array(cache["tag"] for cache in asking)
                    prompts.non_tensor_batch["turns"] = object_array(map(turn_of, asking))
                    return prompts, full
        return None, full

    def parsed(self, requests: Sequence[Request], replies: Sequence[Reply]) -> Answers:
        """The answers in replies to requests."""
        answers = Answers()
        with self.timed("tokenizing"):
            for request, reply in zip(requests, replies, strict=True):
                if reply.out_of_context is not None:
                    answers.full[request.env_id] = reply.out_of_context
                elif reply.error is not None:
                    answers.lost[request.env_id] = reply.error
                else:
                    exchange = exchange_of(request.messages, request.prompt_ids, reply)
                    parsed = self.ctx_manager.env_input(request.env_id, reply.text, exchange)
                    answers.inputs[request.env_id] = parsed
        return answers

    def step(self, es_manager: EnvStateManager, playing: Sequence[Cache], answers: Answers) -> list[Cache]:
        """Step the environments that got a reply; the episodes of the others are over.

        Returns:
            The caches of the environments that go on.
        """
        self.failures.update(answers.lost)
        for env_id, reason in answers.full.items():
            es_manager.end_episode(env_id, reason)
        inputs = [answers.inputs[cache["env_id"]] for cache in playing if cache["env_id"] in answers.inputs]
        with self.timed("environments"):
            active = es_manager.step(inputs) if inputs else []
        going = [cache for cache in active if turn_of(cache) < self.max_turn]
        self._over(es_manager, playing, going)
        return going

    def _over(self, es_manager: EnvStateManager, playing: Sequence[Cache], going: Sequence[Cache]) -> None:
        left = {cache["env_id"] for cache in going}
        over = [cache["env_id"] for cache in playing if cache["env_id"] not in left]
        if over and self.on_over is not None:
            with self.timed("environments"):
                states = es_manager.episode_states(over)
            self.on_over(states)


def turn_of(cache: Cache) -> int:
    """The number of turns that a trajectory has played."""
    return len(cache["history"]) - 1


def _lockstep(rollout: Rollout, es_manager: EnvStateManager, active: list[Cache]) -> None:
    """Every turn waits for the slowest reply and for the slowest environment."""
    with rollout.actor.turns(rollout.max_turn) as modes:
        while active:
            rollout.on_turn()
            active = rollout.step(es_manager, active, rollout.ask(active, next(modes)))


def _stream(rollout: Rollout, es_manager: EnvStateManager, ready: list[Cache]) -> None:
    """Each trajectory runs at its own pace.

    ``on_turn`` is called whenever something has arrived, and every second. If it raises ``LimitReachedError``, no more
    requests are sent, those under way are completed and played, and the error is raised again if that leaves an episode
    unfinished.
    """
    actor: Any = rollout.actor
    active = {cache["env_id"]: cache for cache in ready}
    arrivals: SimpleQueue[Any] = SimpleQueue()

    def step(playing: Sequence[Cache], answers: Answers) -> list[Cache]:
        if not playing:
            return []
        for cache in playing:
            del active[cache["env_id"]]
        going = rollout.step(es_manager, playing, answers)
        active.update((cache["env_id"], cache) for cache in going)
        return going

    def take(patience: float) -> list[Cache] | None:
        """Step the environments whose replies have arrived; None if there are none for a while."""
        arrived: list[Any] = []
        with suppress(Empty):
            if arrivals.empty() and patience:
                with rollout.timed("generation"):
                    arrived.append(arrivals.get(timeout=patience))
            while len(arrived) < MOST_AT_A_TIME:
                arrived.append(arrivals.get_nowait())
        if not arrived:
            return None
        arrived.sort(key=lambda each: each[0].env_id)
        requests = [request for request, _ in arrived]
        answers = rollout.parsed(requests, actor.noted(requests, [future.result() for _, future in arrived]))
        return step([active[request.env_id] for request in requests], answers)

    def submit(request: Request) -> None:
        future = actor.submit(request, actor.sampling(rollout.meta_info))
        future.add_done_callback(lambda done: None if done.cancelled() else arrivals.put((request, done)))

    while active:
        try:
            rollout.on_turn()
        except LimitReachedError:
            actor.backend.settle()
            while take(0.0) is not None:
                pass
            if active:
                raise
            return
        requests, full = rollout.requests(ready)
        step([cache for cache in ready if cache["env_id"] in full], Answers(full=full))
        for request in requests:
            submit(request)
        ready = take(LOOK_UP_S) or []
