"""``LLMAgentProxy``: a player with the schedule chosen by the configuration.

If the backend answers requests one by one, such as a server (:class:`~ragen.llm_agent.backends.base.StreamingBackend`),
each trajectory advances at its own pace; if it answers batches, the turns of all trajectories are played together.

``use_parallel_envs: true`` returns one row per turn, collected from containers of environments as in verl-agent; see
:mod:`ragen.turns`. If these cannot be created, two lines say so, and everything proceeds as with
``false``. The default is false: environments run in parallel either way, and false keeps RAGEN's rows, one per
trajectory, for which its recipes are tuned.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ragen.llm_agent.rollout.player import OverCallback, RolloutPlayer, TurnCallback, actor_of
from ragen.llm_agent.rollout.schedules import ordinary_schedule
from ragen.llm_agent.rollout.shards import Shards
from ragen.settings import setting
from ragen.validity import check_share, env_error

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.turns.collector import TrajectoryCollector
    from ragen.turns.managers import EnvironmentManagerBase
    from ragen.turns.rollouts import TurnRollouts


class LLMAgentProxy(RolloutPlayer):
    """Plays rollouts, by joblib's workers with ``agent_proxy.use_parallel_rollout``.

    A context manager; ``close`` may be called twice. Its other attributes are those of
    :class:`~ragen.llm_agent.rollout.player.RolloutPlayer`.

    Attributes:
        use_parallel_envs: Whether rollouts are collected as one row per turn, if that is possible.
    """

    def __init__(self, config: Any, actor_rollout_wg: Any, tokenizer: Any) -> None:
        """Take the parts; the managers of a mode are made when they are first needed.

        Args:
            config: The whole configuration.
            actor_rollout_wg: A :class:`~ragen.llm_agent.backends.Backend`, or anything with
                ``generate_sequences(DataProto) -> DataProto``, such as a verl worker group or RAGEN's wrappers.
            tokenizer: The actor's tokenizer.

        Raises:
            ConfigError: ``agent_proxy.max_turn`` is missing or less than 1, or a key of parallel rollouts cannot work.
        """
        parallel = Shards(config) if setting(config, "agent_proxy.use_parallel_rollout", bool, False) else None
        self.use_parallel_envs = setting(config, "use_parallel_envs", bool, False)
        self._turn_rollouts: TurnRollouts | None = None
        self._errors: list[str | None] = []  # of each trajectory that was played for training
        actor = actor_of(actor_rollout_wg, config, tokenizer)
        super().__init__(config, actor_rollout_wg, tokenizer, ordinary_schedule(actor), actor, parallel)

    @property
    def parallel_envs(self) -> bool:
        """Whether containers of environments have been created; from then on, rollouts are collected from them."""
        return self._turn_rollouts is not None

    @property
    def train_parallel_envs(self) -> EnvironmentManagerBase | None:
        """The manager of ``es_manager.train``; None unless :attr:`parallel_envs`."""
        return self._turn_rollouts.train if self._turn_rollouts is not None else None

    @property
    def val_parallel_envs(self) -> EnvironmentManagerBase | None:
        """The manager of ``es_manager.val``; None unless :attr:`parallel_envs`."""
        return self._turn_rollouts.val if self._turn_rollouts is not None else None

    @property
    def traj_collector(self) -> TrajectoryCollector | None:
        """Collects from both; None unless :attr:`parallel_envs`."""
        return self._turn_rollouts.collector if self._turn_rollouts is not None else None

    def prepare(self, val: bool = False) -> tuple[EnvStateManager, ContextManager]:
        """See :meth:`RolloutPlayer.prepare`; also creates containers of environments if enabled."""
        prepared = super().prepare(val)
        self._prepare_parallel_envs()
        return prepared

    def _prepare_parallel_envs(self) -> None:
        """Make containers once; say so in two lines where that fails, and do not try again."""
        if not self.use_parallel_envs or self._turn_rollouts is not None:
            return
        from ragen.turns.rollouts import TurnRollouts

        try:
            self._turn_rollouts = TurnRollouts(self.config, self.tokenizer)
        except Exception as error:
            self.use_parallel_envs = False
            print(f"Failed to initialize parallel environments: {error}")
            print("Falling back to original environment system")

    def rollout(
        self,
        dataproto: DataProto,
        val: bool = False,
        on_turn: TurnCallback | None = None,
        on_over: OverCallback | None = None,
        skip: Collection[int] = (),
    ) -> DataProto:
        """See :meth:`RolloutPlayer.rollout`; with ``use_parallel_envs``, one row per turn.

        With ``on_turn``, ``on_over`` or ``skip``, a rollout is played as without ``use_parallel_envs``.

        Raises:
            EnvsFailedError: More than half of the trajectories of all earlier rollouts for training failed with their
                environments, so a trainer, whichever it is, has nothing to learn from.
        """
        if not val:
            check_share(self._errors)
        collected = None
        if on_turn is None and on_over is None and not skip:
            self._prepare_parallel_envs()
            collected = self._turn_rollouts
        if collected is not None:
            self.begin_record()
            batch, played = self._collected(collected, dataproto, val)
        else:
            batch = super().rollout(dataproto, val, on_turn, on_over, skip)
            played = self.rollout_states
        if not val:
            self._errors += map(env_error, played)
        return batch

    def _collected(
        self, rollouts: TurnRollouts, dataproto: DataProto, val: bool
    ) -> tuple[DataProto, list[dict[str, Any]]]:
        with self.timed("environments"):
            batch = rollouts.rollout(self, dataproto, val)
        self.failures = dict(rollouts.collector.failures)
        return batch, rollouts.collector.played

    def close(self) -> None:
        """See :meth:`RolloutPlayer.close`."""
        try:
            super().close()
        finally:
            if self._turn_rollouts is not None:
                self._turn_rollouts.close()
