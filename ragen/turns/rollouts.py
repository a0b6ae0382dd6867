"""The rollouts of ``LLMAgentProxy`` with ``use_parallel_envs: true``, which are collected by turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragen.turns.collector import TrajectoryCollector
from ragen.turns.factory import make_environments

if TYPE_CHECKING:
    from verl import DataProto


class TurnRollouts:
    """The managers of both modes and a collector.

    Attributes:
        train: The manager of ``es_manager.train``.
        val: The manager of ``es_manager.val``.
        collector: Collects from both.
    """

    def __init__(self, config: Any, tokenizer: Any) -> None:
        """Create all parts; if one cannot be created, the others are closed.

        Raises:
            ConfigError: A key is missing or has an invalid value.
        """
        self.collector = TrajectoryCollector(config, tokenizer)
        self.train, self.val = make_environments(config)

    def rollout(self, actor: Any, gen_batch: DataProto, val: bool) -> DataProto:
        """Collect a rollout as a training batch; see :meth:`TrajectoryCollector.multi_turn_loop`.

        Args:
            actor: The actor that answers prompts.
            gen_batch: Its ``meta_info`` is passed to the actor with every batch.
            val: Whether to play ``es_manager.val``.
        """
        return self.collector.multi_turn_loop(gen_batch, actor, self.val if val else self.train, is_train=not val)

    def close(self) -> None:
        """Close the environments; may be called twice."""
        try:
            self.train.close()
        finally:
            self.val.close()
