"""``LLMAgentProxy``: plays rollouts, and builds training batches from them.

    reset -> [ prompts -> replies -> actions -> step ] x max_turn -> formulate_rollouts
    |         |----------------- loop -----------------|          |
    |----------------------- play -------------------------------|
    |----------------------- rollout ----------------------------------------------|

``rollout`` is for training. An evaluation calls ``play``, since it needs no batch of tokens, in which every row is as
wide as the longest trajectory. If the backend answers requests one by one, such as a server, each trajectory advances
at its own pace; if it answers batches, the turns of all trajectories are played together
(:mod:`~ragen.llm_agent.rollout.loop`). With ``agent_proxy.use_parallel_rollout``, joblib's workers play shards of the
environments instead (:mod:`~ragen.llm_agent.rollout.parallel`).

``use_parallel_envs: true`` returns one row per turn, collected from containers of environments as in verl-agent; see
:mod:`ragen.turns`. If these cannot be created, two lines say so, and everything proceeds as with ``false``. The default
is false: environments run in parallel either way, and false keeps RAGEN's rows, one per trajectory, for which its
recipes are tuned.

Importing this module imports neither torch nor verl, so that ``--help`` and errors about the configuration appear at
once, and worker processes, which may import the main module, stay small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any

from envlanes.closing import Closing
from ragen.config.loading import as_config
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.rollout.actor import actor_of
from ragen.llm_agent.rollout.loop import OverCallback, Rollout, TurnCallback
from ragen.validity import check_share, env_error

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.batches.dataproto import AnyBatch
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.llm_agent.rollout.parallel import Shards
    from ragen.turns.collector import TrajectoryCollector
    from ragen.turns.managers import EnvironmentManagerBase

MODES = ("train", "val")


class LLMAgentProxy(Closing):
    """Plays rollouts: an actor answers, environments are stepped, and states or a training batch are returned.

    A context manager; ``close`` may be called twice. It closes the managers that it created, but not the actor.

    Attributes:
        config: The whole configuration.
        actor_wg: The actor, as passed by the caller.
        actor: The same actor behind this package's interface.
        tokenizer: The actor's tokenizer.
        parallel: Plays rollouts by joblib; None unless it is chosen.
        use_parallel_envs: Whether rollouts are collected as one row per turn, if that is possible.
        max_turn: Maximum number of turns of a rollout.
        failures: The reason that an environment got no reply in the last rollout, by environment id.
        rollout_states: The result of ``EnvStateManager.get_rollout_states()`` for the last rollout.
        traj_collector: Collects rollouts by turn; None unless :attr:`parallel_envs`.
        train_parallel_envs: The manager of the containers of ``es_manager.train``; None unless :attr:`parallel_envs`.
        val_parallel_envs: The same of ``es_manager.val``.
        seconds: Seconds of the last rollout by part: ``generation``, ``environments``, ``tokenizing``.
    """

    def __init__(self, config: Any, actor_rollout_wg: Any, tokenizer: Any) -> None:
        """Store the parts; the managers of a mode are created on first use.

        Args:
            config: The whole configuration.
            actor_rollout_wg: A :class:`~ragen.llm_agent.backends.Backend`, or anything with
                ``generate_sequences(DataProto) -> DataProto``, such as a verl worker group or RAGEN's wrappers.
            tokenizer: The actor's tokenizer.

        Raises:
            ConfigError: ``agent_proxy.max_turn`` is missing or less than 1, or a key of parallel rollouts cannot work.
        """
        config = as_config(config)
        self.config, self.actor_wg, self.tokenizer = config, actor_rollout_wg, tokenizer
        self.max_turn = config.agent_proxy.max_turn
        self.parallel: Shards | None = None
        if config.agent_proxy.use_parallel_rollout:
            from ragen.llm_agent.rollout.parallel import Shards  # late, so that help comes at once

            self.parallel = Shards(config)
        self.use_parallel_envs = config.use_parallel_envs
        self.actor = actor_of(actor_rollout_wg, config, tokenizer)
        self.failures: dict[int, str] = {}
        self.rollout_states: list[dict[str, Any]] = []
        self.seconds: dict[str, float] = {}
        self.traj_collector: TrajectoryCollector | None = None
        self.train_parallel_envs: EnvironmentManagerBase | None = None
        self.val_parallel_envs: EnvironmentManagerBase | None = None
        self._errors: list[str | None] = []  # of each trajectory that was played for training

    # Managers

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
        return _ctx_manager(self.config, self.tokenizer, "train")

    @cached_property
    def val_ctx_manager(self) -> ContextManager:
        """Writes the prompts of ``es_manager.val`` and parses the replies."""
        return _ctx_manager(self.config, self.tokenizer, "val")

    def prepare(self, val: bool = False) -> tuple[EnvStateManager, ContextManager]:
        """Create the managers of a mode now, which validates their part of the configuration.

        Raises:
            ConfigError: A key is missing or has an invalid value; no environment was built.
        """
        ctx_manager = self.val_ctx_manager if val else self.train_ctx_manager  # before the manager that starts workers
        es_manager = self.val_es_manager if val else self.train_es_manager
        self._prepare_parallel_envs()
        return es_manager, ctx_manager

    @property
    def parallel_envs(self) -> bool:
        """Whether containers of environments have been created; from then on, rollouts are collected from them."""
        return self.traj_collector is not None

    def _prepare_parallel_envs(self) -> None:
        """Make containers once; say so in two lines where that fails, and do not try again."""
        if not self.use_parallel_envs or self.parallel_envs:
            return
        from ragen.turns.collector import TrajectoryCollector
        from ragen.turns.factory import make_environments

        try:
            collector = TrajectoryCollector(self.config, self.tokenizer)
            self.train_parallel_envs, self.val_parallel_envs = make_environments(self.config)
            self.traj_collector = collector
        except Exception as error:
            self.use_parallel_envs = False
            print(f"Failed to initialize parallel environments: {error}")
            print("Falling back to original environment system")

    # Rollouts

    def generate_sequences(self, lm_inputs: AnyBatch) -> AnyBatch:
        """Generate replies to a batch of prompts."""
        return self.actor.generate_sequences(lm_inputs)

    def rollout(self, dataproto: DataProto, val: bool = False) -> DataProto:
        """Play one episode in every environment, and build a training batch from them.

        Args:
            dataproto: Its ``meta_info`` is passed to the actor with every batch of prompts. ``compute_collapse: False``
                in it omits the columns for collapse detection.
            val: Whether to play ``es_manager.val`` instead of ``es_manager.train``.

        Returns:
            The rollouts, as built by ``ContextManager.formulate_rollouts``; with ``use_parallel_envs``, one row per
            turn.

        Raises:
            EnvsFailedError: More than half of the trajectories of all earlier rollouts for training failed with their
                environments, so a trainer, whichever it is, has nothing to learn from.
        """
        if not val:
            check_share(self._errors)
        self._prepare_parallel_envs()
        start = time.perf_counter()
        if (collector := self.traj_collector) is not None:
            envs = self.val_parallel_envs if val else self.train_parallel_envs
            batch = collector.multi_turn_loop(dataproto, self, envs, is_train=not val)
            self.seconds = {"environments": time.perf_counter() - start}
            played = collector.played
            self.failures = {each["env_id"]: each["error"] for each in played if each["error"] is not None}
        else:
            played = self.play(dataproto.meta_info or {}, val, asks_failed=True)
            _, ctx_manager = self.prepare(val)
            start, include = time.perf_counter(), bool((dataproto.meta_info or {}).get("compute_collapse", True))
            batch = ctx_manager.formulate_rollouts(played, include_collapse_data=include)
            self.seconds["tokenizing"] += time.perf_counter() - start
        if not val:
            self._errors += map(env_error, played)
        return batch

    def play(
        self,
        meta_info: Mapping[str, Any],
        val: bool = False,
        on_turn: TurnCallback | None = None,
        on_over: OverCallback | None = None,
        skip: Collection[int] = (),
        asks_failed: bool = False,
    ) -> list[dict[str, Any]]:
        """Play one episode in every environment.

        Args:
            meta_info: Passed to the actor with every batch of prompts.
            val: Whether to play ``es_manager.val`` instead of ``es_manager.train``.
            on_turn: Called before every turn, or whenever replies have arrived.
            on_over: Called after every turn in which episodes ended, with their states; only whole groups have
                ``pass@k``. If a reply is missing, ``failures`` has the reason.
            skip: Environments that are reset and then not played; at least one must remain.
            asks_failed: Whether the actor is asked about environments that failed in their reset, as in training.

        Returns:
            The final states, also kept in ``rollout_states``; :func:`~ragen.llm_agent.batches.metrics.mean_metrics`
            computes from them the metrics that a training batch would have.
        """
        ctx_manager = self.val_ctx_manager if val else self.train_ctx_manager
        ctx_manager.reset_memory_managers()
        rollout = Rollout(self.actor, ctx_manager, self.max_turn, meta_info, asks_failed, on_over=on_over)
        rollout.on_turn = on_turn or rollout.on_turn
        self.seconds, self.failures = rollout.seconds, rollout.failures
        over, seed = list[dict[str, Any]](), None
        if self.parallel is not None and on_turn is None and on_over is None and not skip:
            over, seed = self.parallel.play(rollout, MODES[val], self._give_examples)
            skip = {state["env_id"] for state in over}
        if not over or seed is not None:
            es_manager, _ = self.prepare(val)
            with rollout.timed("environments"):
                episodes = [cache for cache in es_manager.reset(seed) if cache["env_id"] not in skip]
            self._give_examples(es_manager.example_action)
            rollout.play(es_manager, episodes)
            with rollout.timed("environments"):
                over += [state for state in es_manager.get_rollout_states() if state["env_id"] not in skip]
        self.rollout_states = sorted(over, key=lambda state: state["env_id"])
        return self.rollout_states

    def _give_examples(self, example: Callable[[int, Random], str]) -> None:
        """Set where a scripted backend gets the actions that environments propose; others need none."""
        if isinstance(self.actor.backend, ScriptedBackend):
            self.actor.backend.example = example

    def close(self) -> None:
        """Close the environments and their workers; may be called twice."""
        names = (f"{mode}_{kind}" for mode in MODES for kind in ("parallel_envs", "es_manager"))
        parts = [self.parallel, *map(self.__dict__.get, names)]
        try:
            for part in parts[1:]:
                if part is not None:
                    part.close()
        finally:
            if self.parallel is not None:
                self.parallel.close()


def _es_manager(config: Any, mode: str) -> EnvStateManager:
    from ragen.llm_agent.es_manager import EnvStateManager

    return EnvStateManager(config, mode=mode)


def _ctx_manager(config: Any, tokenizer: Any, mode: str) -> ContextManager:
    from ragen.llm_agent.ctx_manager import ContextManager

    return ContextManager(config, tokenizer, mode=mode)
