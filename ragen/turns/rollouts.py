"""The rollouts of ``LLMAgentProxy`` with ``use_parallel_envs: true``: collected by turn, as RAGEN's training batches.

A row is a turn, with exactly the prompt that it answered; the collector's columns are included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.config.loading import as_config
from ragen.llm_agent.batches.builder import BatchBuilder
from ragen.llm_agent.batches.encoding import EncodedChat
from ragen.llm_agent.batches.metrics import mean_metrics
from ragen.llm_agent.batches.training_rows import TrainingRow
from ragen.llm_agent.prompts.conversation import Row
from ragen.llm_agent.prompts.settings import ContextSettings
from ragen.turns.collector import Trajectory, TrajectoryCollector
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
        self._builder = BatchBuilder(ContextSettings.read(config), None, None, "", tokenizer)
        self._penalty = as_config(config).es_manager.format_penalty
        self.train, self.val = make_environments(config)

    def rollout(self, actor: Any, gen_batch: DataProto, val: bool) -> DataProto:
        """Collect a rollout as a training batch.

        Args:
            actor: The actor that answers prompts.
            gen_batch: Its ``meta_info`` is passed to the actor with every batch.
            val: Whether to play ``es_manager.val``.

        Returns:
            A batch of ``ContextManager.formulate_rollouts`` without failed trajectories, and the collector's columns.
        """
        found = self.collector.collect(gen_batch, actor, self.val if val else self.train, is_train=not val)
        groups: dict[str, int] = {}
        rollouts: list[dict[str, Any]] = []
        rows: list[TrainingRow] = []
        for each in (trajectory for trajectory in found if trajectory.has_signal):
            rollout = self._cache(each, groups.setdefault(each.uid, len(groups)))
            rows += [_row(len(rollouts), rollout, turn, row) for turn, row in enumerate(each.rows)]
            rollouts.append(rollout)
        batch, columns = self._builder.learning_batch(rows, rollouts), self.collector.columns(found)
        del batch.non_tensor_batch["messages_list"]
        batch.non_tensor_batch.update(columns)
        metrics = {f"episode/{name}": float(columns[name][0]) for name in columns if name.startswith("success")}
        for name in ("reward", "length"):
            metrics |= {
                f"episode/{name}/{k}": float(columns[f"episode_{name}s_{k}"][0]) for k in ("mean", "min", "max")
            }
        metrics["episode/valid_action_ratio"] = float(np.mean(columns["is_action_valid"].astype(bool)))
        metrics |= batch.meta_info["metrics"] | mean_metrics(self.collector.played)
        batch.meta_info = {**gen_batch.meta_info, "metrics": metrics}
        return batch

    def _cache(self, played: Trajectory, group_id: int) -> dict[str, Any]:
        """A trajectory as a rollout cache, from which scores are computed."""
        return {
            "env_id": played.env_id,
            "tag": played.tag,
            "group_id": group_id,
            "history": [{"reward": row["rewards"], "llm_response": ""} for row in played.rows],
            "penalty": self._penalty * sum(not row["is_action_valid"] for row in played.rows),
        }

    def close(self) -> None:
        """Close the environments; may be called twice."""
        try:
            self.train.close()
        finally:
            self.val.close()


def _row(episode: int, rollout: dict[str, Any], turn: int, row: dict[str, Any]) -> TrainingRow:
    asked, said, log_probs = row["chat"].ids, list(row["exchange"].reply_ids), row["exchange"].log_probs
    start, end = len(asked), len(asked) + len(said)
    known = None if log_probs is None else list(zip(range(start, end), log_probs, strict=True))
    encoded = EncodedChat([*asked, *said], [(start, end)], body=start)
    return TrainingRow(Row(episode, rollout, turn, turn + 1, False), [], encoded, known)
