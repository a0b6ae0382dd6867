"""What every way of playing rollouts shares: the parts, one turn of them, and the record of the last rollout.

One turn is: states to prompts (:mod:`~ragen.llm_agent.ctx_manager`), prompts to replies (the actor), replies to
actions, actions into the environments (:mod:`~ragen.llm_agent.es_manager`)::

    reset -> [ get_lm_inputs -> generate_sequences -> get_env_inputs -> step ] x max_turn -> formulate_rollouts
    |         |------------------------ schedule -----------------------------|          |
    |------------------------------- play ---------------------------------------------|
    |------------------------------- rollout --------------------------------------------------------------|

``rollout`` is for training. An evaluation needs no batch of tokens, in which every row is as wide as the longest
trajectory, and calls ``play``. How the turns of many environments follow on one another is decided by a schedule:
lockstep or streaming (:mod:`~ragen.llm_agent.rollout.schedules`), :mod:`~.shards` or :mod:`~.trees`. A player has
a schedule; a schedule is given the player for the time of a rollout, and keeps none.

Importing this module imports neither torch nor verl: the command answers ``--help`` and refuses a bad configuration at
once, and worker processes, which may import the main module, stay small.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragen.closing import Closing
from ragen.errors import ConfigError
from ragen.extras import needs
from ragen.llm_agent.backends.base import Backend
from ragen.llm_agent.backends.verl import VerlBackend, is_worker_group
from ragen.llm_agent.config.branching import BranchingSettings
from ragen.llm_agent.config.generation import Generation
from ragen.llm_agent.config.loading import read_max_turn
from ragen.llm_agent.rollout.actor import (
    Actor,
    BackendActor,
    ForeignActor,
    GeneratesSequences,
    WorkerModes,
    name_requests,
)
from ragen.llm_agent.rollout.timeline import Timeline
from ragen.llm_agent.rollout.trees import GrowingTrees

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.llm_agent.tokens.dataproto import AnyBatch

MODES, TENSOR_MODULES = ("train", "val"), ("tensordict", "verl")
PARTS, IMPORTS = ("generation", "environments", "tokenizing"), "imports"

Cache = dict[str, Any]
TurnCallback = Callable[[int, int], None]
OverCallback = Callable[[list[dict[str, Any]]], None]


@dataclass(frozen=True)
class Rollout:
    """One rollout: the parts that play it, the episodes, and the callbacks.

    Attributes:
        player: Its ``failures`` and ``timeline`` record what happens.
        es_manager: The environments, as :meth:`Schedule.new_es_manager` made them.
        ctx_manager: Writes their prompts and reads the replies.
        episodes: The caches of the environments that play; they were just reset.
        meta_info: See :meth:`RolloutPlayer.play`, as for the rest.
        on_turn: See there.
        on_over: See there; it is called when a whole tree is over, its root last.
        trees: How its episodes branch; None where they are chains.
    """

    player: RolloutPlayer
    es_manager: EnvStateManager
    ctx_manager: ContextManager
    episodes: Sequence[dict[str, Any]]
    meta_info: Mapping[str, Any]
    on_turn: TurnCallback | None = None
    on_over: OverCallback | None = None
    trees: GrowingTrees | None = None

    def report_turn(self, turn: int, active: int) -> None:
        """Call ``on_turn`` with the number of the next turn, and of active environments."""
        if self.on_turn is not None:
            self.on_turn(turn, active)

    def report_over(self, playing: Sequence[dict[str, Any]], active: Sequence[dict[str, Any]]) -> None:
        """Call ``on_over`` with the episodes that ended in this turn."""
        if self.on_over is not None:
            with self.player.timed("environments"):
                states = self.over(playing, active)
            self.on_over(states)

    def over(self, playing: Sequence[dict[str, Any]], active: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The states of the episodes that ended in this turn."""
        going_on = {cache["env_id"] for cache in active}
        over = [cache["env_id"] for cache in playing if cache["env_id"] not in going_on]
        if self.trees is not None:
            over = self.trees.whole(over, going_on)
        return self.es_manager.episode_states(over) if over else []


class Schedule(ABC):
    """How the turns of many environments follow on one another."""

    def new_es_manager(self, config: Any, mode: str) -> EnvStateManager:
        """The environments of a mode, in the form in which this schedule steps them."""
        from ragen.llm_agent.es_manager import EnvStateManager

        return EnvStateManager(config, mode=mode)

    @abstractmethod
    def play(self, rollout: Rollout) -> None:
        """Play a rollout's episodes to their end."""


class RolloutPlayer(Closing):
    """Plays rollouts: an actor answers, environments are stepped, and states or a batch for training come out.

    A context manager; ``close`` may be called twice. It closes the managers that it made, not the actor.

    Attributes:
        config: The whole configuration.
        generation: Which RAGEN is meant where it has changed.
        actor_wg: Who answers, as it was given.
        actor: Answers the prompts; what was given, behind one interface.
        names_requests: Whether prompts say which tag and turn they are of. With quirks, only those for this package's
            own backends do: workers and wrappers of RAGEN's kind are given RAGEN's columns alone.
        tokenizer: The actor's tokenizer.
        schedule: Plays the turns.
        max_turn: The most turns of a rollout.
        failures: Environment id to what kept it from getting a reply, in the last rollout.
        rollout_states: The last rollout as ``EnvStateManager.get_rollout_states()`` gave it.
        timeline: The last rollout's spans of time, by track.
        record_lanes: Whether the next rollout's timeline shows what each lane did.
    """

    def __init__(
        self,
        config: Any,
        actor_rollout_wg: Any,
        tokenizer: Any,
        schedule: Schedule,
        actor: Actor | None = None,
        branching: BranchingSettings | None = None,
    ) -> None:
        """Take the parts; the managers of a mode are made when they are first needed.

        Args:
            config: The whole configuration.
            actor_rollout_wg: A :class:`~ragen.llm_agent.backends.Backend`, or anything with
                ``generate_sequences(DataProto) -> DataProto``, such as a verl worker group or RAGEN's wrappers.
            tokenizer: The actor's tokenizer.
            schedule: Plays the turns.
            actor: What :func:`actor_of` made of ``actor_rollout_wg``; None makes it.
            branching: Where rollouts are trees; None for chains.

        Raises:
            ConfigError: ``agent_proxy.max_turn`` is missing or less than 1.
        """
        self.config = config
        self.tokenizer = tokenizer
        self.schedule = schedule
        self._branching = branching
        self.max_turn = read_max_turn(config)
        self.generation = Generation.read(config)
        self.actor_wg = actor_rollout_wg
        self._last_inputs: AnyBatch | None = None
        self.actor = actor_of(actor_rollout_wg, config, tokenizer) if actor is None else actor
        self.names_requests = not self.generation.quirks or self.actor.takes_prompts
        self.failures: dict[int, str] = {}
        self.rollout_states: list[dict[str, Any]] = []
        self.record_lanes = False
        self._is_training = False
        self.timeline = Timeline()

    @cached_property
    def train_es_manager(self) -> EnvStateManager:
        """The environments of ``es_manager.train``."""
        return self.schedule.new_es_manager(self.config, "train")

    @cached_property
    def val_es_manager(self) -> EnvStateManager:
        """The environments of ``es_manager.val``."""
        return self.schedule.new_es_manager(self.config, "val")

    @cached_property
    def train_ctx_manager(self) -> ContextManager:
        """Writes the prompts of ``es_manager.train`` and reads the replies."""
        return self._ctx_manager("train")

    @cached_property
    def val_ctx_manager(self) -> ContextManager:
        """Writes the prompts of ``es_manager.val`` and reads the replies."""
        return self._ctx_manager("val")

    def _ctx_manager(self, mode: str) -> ContextManager:
        from ragen.llm_agent.ctx_manager import ContextManager

        return ContextManager(self.config, self.tokenizer, mode=mode)

    def prepare(self, val: bool = False) -> tuple[EnvStateManager, ContextManager]:
        """Create the managers of a mode now, which validates their part of the configuration.

        Raises:
            ConfigError: A key is missing or has an invalid value; no environment was built.
        """
        ctx_manager = self.val_ctx_manager if val else self.train_ctx_manager  # the one that starts workers comes last
        return (self.val_es_manager if val else self.train_es_manager), ctx_manager

    @property
    def _needs_tensors(self) -> bool:
        """Whether prompts are a ``DataProto``; not where neither the actor nor a training batch needs tensors."""
        return self._is_training or not self.actor.takes_prompts

    def generate_sequences(self, lm_inputs: AnyBatch) -> AnyBatch:
        """Let the actor answer a batch of prompts."""
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
                in it omits the columns for collapse detection (generation 2026).
            val: See :meth:`play`, as for the following arguments.
            on_turn: See :meth:`play`.
            on_over: See :meth:`play`.
            skip: See :meth:`play`.

        Returns:
            The rollouts, as built by ``ContextManager.formulate_rollouts``.
        """
        self._is_training = True
        try:
            states = self.play(dataproto.meta_info, val, on_turn, on_over, skip)
        finally:
            self._is_training = False
        _, ctx_manager = self.prepare(val)
        with self.timed("tokenizing"):
            if not self.generation.is_2026:
                return ctx_manager.formulate_rollouts(states)
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
                :class:`~ragen.llm_agent.tokens.dataproto.PromptBatch`, any other as a ``DataProto``.
            val: Whether to play ``es_manager.val`` instead of ``es_manager.train``.
            on_turn: Called before every turn with its number, from 0, and the number of active environments, and once
                after the last turn.
            on_over: Called after every turn in which episodes ended, with their states; only whole groups have
                ``pass@k``. If a reply is missing, ``failures`` has the reason.
            skip: Environments that are reset and then not played; at least one must remain.

        Returns:
            The final states, also kept in ``rollout_states``; :func:`~ragen.llm_agent.rollout.metrics.mean_metrics`
            computes from them the metrics that a training batch would have.
        """
        es_manager, ctx_manager = self.prepare(val)
        self.begin_record()
        if self._needs_tensors:
            self.import_tensors()
        with self.timed("environments"), self.timeline.lanes(es_manager.lane_stats):
            episodes = [cache for cache in es_manager.reset() if cache["env_id"] not in skip]
        ctx_manager.reset_memory_managers()
        trees = None
        if self._branching is not None and es_manager.mode in self._branching.modes:
            trees = GrowingTrees(self._branching, es_manager, self.actor, self.tokenizer, episodes)
        self.schedule.play(Rollout(self, es_manager, ctx_manager, episodes, meta_info, on_turn, on_over, trees))
        return self.keep_states(es_manager, skip)

    def prompts(
        self, rollout: Rollout, alike: Sequence[Sequence[Cache]], meta_info: Mapping[str, Any], tensors: bool = True
    ) -> AnyBatch:
        """The prompts of some trajectories, a row for each.

        Args:
            rollout: The rollout.
            alike: The caches of the trajectories; trajectories that share a prompt are one sequence.
            meta_info: What else the actor is given.
            tensors: Whether they may be a ``DataProto``, if the actor or a training batch needs that.
        """
        first, trees = [caches[0] for caches in alike], rollout.trees
        if tensors and self._needs_tensors:
            lm_inputs: AnyBatch = rollout.ctx_manager.get_lm_inputs(first)
        else:  # trees count tokens
            lm_inputs = rollout.ctx_manager.get_prompts(first, self.actor.needs_tokens or trees is not None)
        if trees is not None:
            lm_inputs = trees.repeated(lm_inputs, alike)
        if self.names_requests:
            name_requests(lm_inputs, [cache for caches in alike for cache in caches])
        lm_inputs.meta_info = {**lm_inputs.meta_info, **meta_info}
        self._last_inputs = lm_inputs
        return lm_inputs

    def end_turns(self, modes: WorkerModes) -> None:
        """Send workers the mode that ends a rollout, where all its episodes ended early."""
        mode, inputs = modes.of_end(), self._last_inputs
        self._last_inputs = None
        if mode is not None and inputs is not None:
            inputs.meta_info = {**inputs.meta_info, **mode}
            with self.timed("generation"):
                self.generate_sequences(inputs)

    def keep_states(self, es_manager: EnvStateManager, skip: Collection[int]) -> list[dict[str, Any]]:
        """The rollout's final states, without skipped environments; they become ``rollout_states``."""
        with self.timed("environments"):
            states = es_manager.get_rollout_states()
            self.rollout_states = [state for state in states if state["env_id"] not in skip]
        return self.rollout_states

    @needs("verl", "a DataProto batch")
    def import_tensors(self) -> None:
        """Import what ``DataProto`` needs: seconds the first time, counted as ``imports`` and not as work."""
        if all(module in sys.modules for module in TENSOR_MODULES):
            return
        with self.timed(IMPORTS):
            for module in TENSOR_MODULES:
                import_module(module)

    @property
    def seconds(self) -> dict[str, float]:
        """What the last rollout spent its time on, in seconds; parts of turns that overlap do too."""
        imports = [IMPORTS] if any(span.kind == IMPORTS for span in self.timeline.spans) else []
        return self.timeline.seconds([*PARTS, *imports])

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Count what a block takes as time of a part: ``generation``, ``environments``, ``tokenizing``, ``imports``."""
        return self.timeline.span("rollout", part)

    def begin_record(self) -> None:
        """A rollout begins: forget the times and failures of the last one."""
        self.failures = {}
        self.timeline = Timeline(self.record_lanes)

    def close(self) -> None:
        """Close the environments and their workers; may be called twice."""
        for mode in MODES:
            manager = self.__dict__.get(f"{mode}_es_manager")
            if manager is not None:
                manager.close()


def actor_of(given: Any, config: Any, tokenizer: Any) -> Actor:
    """What answers batches of any size: a backend, a worker group or any other object, behind one interface.

    Args:
        given: A backend, a worker group, or anything with ``generate_sequences``.
        config: The whole configuration.
        tokenizer: The actor's.

    Raises:
        ConfigError: It is none of these, or a key that says how to sample cannot work.
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
