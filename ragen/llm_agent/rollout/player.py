"""The base of all ways of playing rollouts: the parts, a turn, and the record of the last rollout.

In a turn, prompts are built from states (:mod:`~ragen.llm_agent.ctx_manager`), the actor replies, replies are parsed
into actions, and the environments are stepped (:mod:`~ragen.llm_agent.es_manager`)::

    reset -> [ get_lm_inputs -> generate_sequences -> get_env_inputs -> step ] x max_turn -> formulate_rollouts
    |         |------------------------ schedule -----------------------------|          |
    |------------------------------- play ---------------------------------------------|
    |------------------------------- rollout --------------------------------------------------------------|

``rollout`` is for training. An evaluation calls ``play``, since it needs no batch of tokens, in which every row is as
wide as the longest trajectory. A schedule determines the order of the turns of many environments: lockstep or streaming
(:mod:`~ragen.llm_agent.rollout.schedules`). With ``agent_proxy.use_parallel_rollout``, joblib's workers play shards of
the environments instead (:mod:`~ragen.llm_agent.rollout.shards`).

Importing this module imports neither torch nor verl, so that ``--help`` and errors about the configuration appear at
once, and worker processes, which may import the main module, stay small.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from envlanes.closing import Closing
from ragen.errors import ConfigError, ContextFullError, InputError, in_short
from ragen.extras import needs
from ragen.llm_agent.backends.base import Backend
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.backends.verl import VerlBackend, is_worker_group
from ragen.llm_agent.config.loading import read_max_turn
from ragen.llm_agent.rollout.actor import (
    Actor,
    BackendActor,
    ForeignActor,
    GeneratesSequences,
    WorkerModes,
    name_requests,
    reasons_of,
)
from ragen.llm_agent.rollout.timeline import Timeline

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.batches.dataproto import AnyBatch
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import EnvStateManager

MODES, TENSOR_MODULES = ("train", "val"), ("tensordict", "verl")
PARTS, IMPORTS = ("generation", "environments", "tokenizing"), "imports"

Cache = dict[str, Any]
EnvInput = dict[str, Any]
TurnCallback = Callable[[int, int], None]
OverCallback = Callable[[list[dict[str, Any]]], None]


class Answers(NamedTuple):
    """The answers to some prompts.

    Attributes:
        inputs: The parsed replies, by env_id.
        lost: Why there is no reply, by env_id.
        full: Why a prompt did not fit the model's context, by env_id.
    """

    inputs: dict[int, EnvInput]
    lost: dict[int, str]
    full: dict[int, str]

    @classmethod
    def of(cls, ctx_manager: ContextManager, outputs: AnyBatch) -> Answers:
        """The answers in the output of an actor."""
        lost, full = reasons_of(outputs, "errors"), reasons_of(outputs, "out_of_context")
        parsed = {each["env_id"]: each for each in ctx_manager.get_env_inputs(outputs)}
        inputs = {env_id: each for env_id, each in parsed.items() if env_id not in lost and env_id not in full}
        return cls(inputs, {env_id: reason for env_id, reason in lost.items() if env_id not in full}, full)


@dataclass(frozen=True)
class Rollout:
    """One rollout: the parts that play it, the episodes, and the callbacks.

    Attributes:
        player: Its ``failures`` and ``timeline`` record what happens.
        es_manager: The environments.
        ctx_manager: Writes their prompts and parses the replies.
        episodes: The caches of the playing environments, after their reset.
        meta_info: See :meth:`RolloutPlayer.play`.
        on_turn: See :meth:`RolloutPlayer.play`.
        on_over: See :meth:`RolloutPlayer.play`.
    """

    player: RolloutPlayer
    es_manager: EnvStateManager
    ctx_manager: ContextManager
    episodes: Sequence[dict[str, Any]]
    meta_info: Mapping[str, Any]
    on_turn: TurnCallback | None = None
    on_over: OverCallback | None = None

    def report_turn(self, turn: int, active: int) -> None:
        """Call ``on_turn`` with the number of the next turn, and of active environments."""
        if self.on_turn is not None:
            self.on_turn(turn, active)

    def report_over(self, playing: Sequence[dict[str, Any]], active: Sequence[dict[str, Any]]) -> None:
        """Call ``on_over`` with the episodes that ended in this turn."""
        if self.on_over is not None:
            going_on = {cache["env_id"] for cache in active}
            over = [cache["env_id"] for cache in playing if cache["env_id"] not in going_on]
            with self.player.timed("environments"):
                states = self.es_manager.episode_states(over) if over else []
            self.on_over(states)

    def step(self, playing: Sequence[Cache], answers: Answers) -> list[Cache]:
        """Step the environments that got a reply.

        Args:
            playing: The caches of the environments that were asked about.
            answers: The answers to them; an episode without a reply is over.

        Returns:
            The caches of the environments that go on.
        """
        self.player.failures.update(answers.lost)
        for env_id, reason in answers.full.items():
            self.es_manager.end_episode(env_id, reason)
        timeline = self.player.timeline
        with timeline.span("rollout", "environments"), timeline.lanes(self.es_manager.lane_stats):
            inputs = [answers.inputs[cache["env_id"]] for cache in playing if cache["env_id"] in answers.inputs]
            active = self.es_manager.step(inputs) if inputs else []
        going = [cache for cache in active if turn_of(cache) < self.player.max_turn]
        self.report_over(playing, going)
        return going


class Schedule(ABC):
    """The order of the turns of many environments."""

    @abstractmethod
    def play(self, rollout: Rollout) -> None:
        """Play a rollout's episodes to their end."""


class ParallelLoop(ABC):
    """Plays the rollouts of a player that have no callbacks; see :mod:`~ragen.llm_agent.rollout.shards`.

    Attributes:
        n_jobs: Number of workers; -1 for one per processor.
        fallback_reason: Why (a part of) the last rollout was played by the schedule; None if it was not.
    """

    n_jobs: int
    fallback_reason: str | None

    @abstractmethod
    def play(
        self, player: RolloutPlayer, meta_info: Mapping[str, Any], val: bool
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Play one episode in every environment; see :meth:`RolloutPlayer.play` for the arguments.

        Returns:
            The states of all that was played to its end, by environment; and the seed of group 0 if the schedule is to
            play the rest, else None.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers."""


class RolloutPlayer(Closing):
    """Plays rollouts: an actor answers, environments are stepped, and states or a training batch are returned.

    A context manager; ``close`` may be called twice. It closes the managers that it created, but not the actor.

    Attributes:
        config: The whole configuration.
        actor_wg: The actor, as passed by the caller.
        actor: The same actor behind this package's interface.
        tokenizer: The actor's tokenizer.
        schedule: Plays the turns.
        parallel: Plays rollouts by joblib first; None unless it is chosen.
        is_training: Whether a training batch is made of the rollout.
        max_turn: Maximum number of turns of a rollout.
        failures: Why an environment got no reply in the last rollout, by environment id.
        rollout_states: The result of ``EnvStateManager.get_rollout_states()`` for the last rollout.
        timeline: The last rollout's time spans, by track.
        record_lanes: Whether the next rollout's timeline includes each worker.
    """

    def __init__(
        self,
        config: Any,
        actor_rollout_wg: Any,
        tokenizer: Any,
        schedule: Schedule,
        actor: Actor | None = None,
        parallel: ParallelLoop | None = None,
    ) -> None:
        """Store the parts; the managers of a mode are created on first use.

        Args:
            config: The whole configuration.
            actor_rollout_wg: A :class:`~ragen.llm_agent.backends.Backend`, or anything with
                ``generate_sequences(DataProto) -> DataProto``, such as a verl worker group or RAGEN's wrappers.
            tokenizer: The actor's tokenizer.
            schedule: Plays the turns.
            actor: The result of :func:`actor_of` for ``actor_rollout_wg``; None creates it.
            parallel: Plays rollouts without callbacks by joblib; the schedule plays the others, and what fails.

        Raises:
            ConfigError: ``agent_proxy.max_turn`` is missing or less than 1.
        """
        self.config = config
        self.tokenizer = tokenizer
        self.schedule, self.parallel = schedule, parallel
        self.max_turn = read_max_turn(config)
        self.actor_wg = actor_rollout_wg
        self._last_inputs: AnyBatch | None = None
        self.actor = actor_of(actor_rollout_wg, config, tokenizer) if actor is None else actor
        self.failures: dict[int, str] = {}
        self.rollout_states: list[dict[str, Any]] = []
        self.record_lanes = False
        self.is_training = False
        self.timeline = Timeline()

    @cached_property
    def train_es_manager(self) -> EnvStateManager:
        """The environments of ``es_manager.train``."""
        return _es_manager(self.config, "train")

    @cached_property
    def val_es_manager(self) -> EnvStateManager:
        """The environments of ``es_manager.val``."""
        return _es_manager(self.config, "val")

    @cached_property
    def train_ctx_manager(self) -> ContextManager:
        """Writes the prompts of ``es_manager.train`` and parses the replies."""
        return self._ctx_manager("train")

    @cached_property
    def val_ctx_manager(self) -> ContextManager:
        """Writes the prompts of ``es_manager.val`` and parses the replies."""
        return self._ctx_manager("val")

    def _ctx_manager(self, mode: str) -> ContextManager:
        from ragen.llm_agent.ctx_manager import ContextManager

        return ContextManager(self.config, self.tokenizer, mode=mode)

    def prepare(self, val: bool = False) -> tuple[EnvStateManager, ContextManager]:
        """Create the managers of a mode now, which validates their part of the configuration.

        Raises:
            ConfigError: A key is missing or has an invalid value; no environment was built.
        """
        ctx_manager = self.val_ctx_manager if val else self.train_ctx_manager  # before the manager that starts workers
        return (self.val_es_manager if val else self.train_es_manager), ctx_manager

    @property
    def _needs_tensors(self) -> bool:
        """Whether prompts are a ``DataProto``, because the actor or a training batch needs tensors."""
        return self.is_training or not self.actor.takes_prompts

    def generate_sequences(self, lm_inputs: AnyBatch) -> AnyBatch:
        """Generate replies to a batch of prompts."""
        return self.actor.generate_sequences(lm_inputs)

    def rollout(
        self,
        dataproto: DataProto,
        val: bool = False,
        on_turn: TurnCallback | None = None,
        on_over: OverCallback | None = None,
        skip: Collection[int] = (),
    ) -> DataProto:
        """Play one episode in every environment, and build a training batch from them.

        Args:
            dataproto: Its ``meta_info`` is passed to the actor with every batch of prompts. ``compute_collapse: False``
                in it omits the columns for collapse detection.
            val: See :meth:`play`, as for the following arguments.
            on_turn: See :meth:`play`.
            on_over: See :meth:`play`.
            skip: See :meth:`play`.

        Returns:
            The rollouts, as built by ``ContextManager.formulate_rollouts``.
        """
        self.is_training = True
        try:
            states = self.play(dataproto.meta_info, val, on_turn, on_over, skip)
        finally:
            self.is_training = False
        _, ctx_manager = self.prepare(val)
        with self.timed("tokenizing"):
            include = bool((dataproto.meta_info or {}).get("compute_collapse", True))
            return ctx_manager.formulate_rollouts(states, include_collapse_data=include)

    def play(
        self,
        meta_info: Mapping[str, Any],
        val: bool = False,
        on_turn: TurnCallback | None = None,
        on_over: OverCallback | None = None,
        skip: Collection[int] = (),
    ) -> list[dict[str, Any]]:
        """Play one episode in every environment.

        Args:
            meta_info: Passed to the actor with every batch of prompts. An actor that ``takes_prompts`` gets them as a
                :class:`~ragen.llm_agent.batches.dataproto.PromptBatch`, any other as a ``DataProto``.
            val: Whether to play ``es_manager.val`` instead of ``es_manager.train``.
            on_turn: Called before every turn with its number, from 0, and the number of active environments, and once
                after the last turn.
            on_over: Called after every turn in which episodes ended, with their states; only whole groups have
                ``pass@k``. If a reply is missing, ``failures`` has the reason.
            skip: Environments that are reset and then not played; at least one must remain.

        Returns:
            The final states, also kept in ``rollout_states``; :func:`~ragen.llm_agent.batches.metrics.mean_metrics`
            computes from them the metrics that a training batch would have.
        """
        self.begin_record()
        if self._needs_tensors:
            self.import_tensors()
        over, seed = list[dict[str, Any]](), None
        if self.parallel is not None and on_turn is None and on_over is None and not skip:
            (self.val_ctx_manager if val else self.train_ctx_manager).reset_memory_managers()
            over, seed = self.parallel.play(self, meta_info, val)
            if seed is None:
                self.rollout_states = over
                return over
            skip = {*skip, *(state["env_id"] for state in over)}
        es_manager, ctx_manager = self.prepare(val)
        with self.timed("environments"), self.timeline.lanes(es_manager.lane_stats):
            episodes = [cache for cache in es_manager.reset(seed) if cache["env_id"] not in skip]
        ctx_manager.reset_memory_managers()
        self.give_examples(es_manager.example_action)
        rollout = Rollout(self, es_manager, ctx_manager, episodes, meta_info, on_turn, on_over)
        self.schedule.play(rollout if self.is_training else _without_failed(rollout))
        with self.timed("environments"):
            states = [state for state in es_manager.get_rollout_states() if state["env_id"] not in skip]
        self.rollout_states = sorted([*over, *states], key=lambda state: state["env_id"])
        return self.rollout_states

    def ask(
        self,
        ctx_manager: ContextManager,
        asking: Sequence[Cache],
        meta_info: Mapping[str, Any],
        shared: GeneratesSequences | None = None,
    ) -> Answers:
        """Ask the actor about some environments in one batch.

        Args:
            ctx_manager: Writes the prompts and parses the replies.
            asking: The caches of the environments.
            meta_info: Further data for the actor.
            shared: Asked in the actor's place.

        Raises:
            InputError: The actor answered others than it was asked about.
        """
        with self.timed("tokenizing"):
            prompts, full = self.fitting_prompts(ctx_manager, asking, meta_info)
        if prompts is None:
            return Answers({}, {}, full)
        with self.timed("generation"):
            outputs = (shared or self).generate_sequences(prompts)
        with self.timed("tokenizing"):
            inputs, lost, refused = Answers.of(ctx_manager, outputs)
        answered, asked = {*inputs, *lost, *refused}, {c["env_id"] for c in asking if c["env_id"] not in full}
        if answered != asked:
            raise InputError(
                f"the actor returned replies for the environments {in_short(sorted(answered))}; expected one for each "
                f"of {in_short(sorted(asked))}."
            )
        return Answers(inputs, lost, full | refused)

    def give_examples(self, example: Callable[[int, Random], str]) -> None:
        """Set where a scripted backend gets the actions that environments propose; others need none."""
        if isinstance(self.actor.backend, ScriptedBackend):
            self.actor.backend.example = example

    def fitting_prompts(
        self, ctx_manager: ContextManager, asking: Sequence[Cache], meta_info: Mapping[str, Any], tensors: bool = True
    ) -> tuple[AnyBatch | None, dict[int, str]]:
        """The prompts that fit the model's context, None if none does, and why others do not, by env_id."""
        full: dict[int, str] = {}
        while asking:
            try:
                return self.prompts(ctx_manager, asking, meta_info, tensors), full
            except ContextFullError as error:
                left = [cache for cache in asking if cache["env_id"] != error.env_id]
                if len(left) == len(asking):
                    raise
                full[error.env_id], asking = str(error), left
        return None, full

    def prompts(
        self, ctx_manager: ContextManager, asking: Sequence[Cache], meta_info: Mapping[str, Any], tensors: bool = True
    ) -> AnyBatch:
        """The prompts of trajectories, with a row for each.

        Args:
            ctx_manager: Writes them.
            asking: The caches of the trajectories.
            meta_info: Further data for the actor.
            tensors: Whether they may be a ``DataProto``, if the actor or a training batch needs that.
        """
        if tensors and self._needs_tensors:
            lm_inputs: AnyBatch = ctx_manager.get_lm_inputs(asking)
        else:
            lm_inputs = ctx_manager.get_prompts(asking, self.actor.needs_tokens)
        name_requests(lm_inputs, asking)
        lm_inputs.meta_info = {**lm_inputs.meta_info, **meta_info}
        self._last_inputs = lm_inputs
        return lm_inputs

    def end_turns(self, modes: WorkerModes) -> None:
        """Send workers the mode that ends a rollout, if all its episodes ended early."""
        mode, inputs = modes.of_end(), self._last_inputs
        self._last_inputs = None
        if mode is not None and inputs is not None:
            inputs.meta_info = {**inputs.meta_info, **mode}
            with self.timed("generation"):
                self.generate_sequences(inputs)

    @needs("verl", "a DataProto batch")
    def import_tensors(self) -> None:
        """Import the dependencies of ``DataProto``, whose time is counted as ``imports``."""
        if all(module in sys.modules for module in TENSOR_MODULES):
            return
        with self.timed(IMPORTS):
            for module in TENSOR_MODULES:
                import_module(module)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the last rollout by activity; overlapping activities are counted each."""
        imports = [IMPORTS] if any(span.kind == IMPORTS for span in self.timeline.spans) else []
        return self.timeline.seconds([*PARTS, *imports])

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Count a block's time for an activity: ``generation``, ``environments``, ``tokenizing``, ``imports``."""
        return self.timeline.span("rollout", part)

    def begin_record(self) -> None:
        """Begin a rollout: clear the times and failures of the last one."""
        self.failures = {}
        self.timeline = Timeline(self.record_lanes)

    def close(self) -> None:
        """Close the environments and their workers; may be called twice."""
        if self.parallel is not None:
            self.parallel.close()
        for mode in MODES:
            manager = self.__dict__.get(f"{mode}_es_manager")
            if manager is not None:
                manager.close()


def _without_failed(rollout: Rollout) -> Rollout:
    """The rollout without environments that failed in their reset; in training, a sampled reply ends these as well."""
    with rollout.player.timed("environments"):
        going = rollout.es_manager.end_failed(rollout.episodes)
    if len(going) < len(rollout.episodes):
        rollout.report_over(rollout.episodes, going)
    return replace(rollout, episodes=going)


def _es_manager(config: Any, mode: str) -> EnvStateManager:
    from ragen.llm_agent.es_manager import EnvStateManager

    return EnvStateManager(config, mode=mode)


def turn_of(cache: Cache) -> int:
    """The number of turns that a trajectory has played."""
    return len(cache["history"]) - 1


def actor_of(given: Any, config: Any, tokenizer: Any) -> Actor:
    """An actor for a backend, a worker group or any other object, which answers batches of any size.

    Args:
        given: A backend, a worker group, or anything with ``generate_sequences``.
        config: The whole configuration.
        tokenizer: The actor's tokenizer.

    Raises:
        ConfigError: It is none of these, or a sampling parameter is invalid.
    """
    if isinstance(given, Actor):
        return given
    if is_worker_group(given):
        return ForeignActor(VerlBackend(given, tokenizer))
    if isinstance(given, GeneratesSequences):
        return ForeignActor(given)
    if isinstance(given, Backend):
        return BackendActor(given, config, tokenizer)
    raise ConfigError(
        f"the actor is a {type(given).__name__}; expected a backend, which derives from "
        "ragen.llm_agent.backends.Backend, or an object with generate_sequences, such as a worker group of verl."
    )
