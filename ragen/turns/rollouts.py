"""The rollouts of ``LLMAgentProxy`` with ``use_parallel_envs: true``: collected by turn, as RAGEN's training batches.

A row is a turn, with exactly the prompt that it answered. Masks and scores are aligned as in RAGEN: with ``responses``,
which is ``input_ids`` without its first column. The collector's columns are included.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.llm_agent.batches.dataproto import data_proto, object_array
from ragen.llm_agent.batches.metrics import mean_metrics
from ragen.llm_agent.batches.training_rows import normalized_totals, total_reward
from ragen.llm_agent.config.context import ContextSettings
from ragen.settings import setting
from ragen.turns.collector import TrajectoryCollector
from ragen.turns.managers import EnvironmentManagerBase

if TYPE_CHECKING:
    import torch
    from verl import DataProto


class RowPlaces:
    """The trajectory and the group of each row of a collected batch.

    Attributes:
        starts: The first row of each trajectory.
        episodes: The trajectory of each row.
        groups: The group of each row.
    """

    def __init__(self, batch: DataProto) -> None:
        """Read the uids of trajectories and groups."""
        names = list(batch.non_tensor_batch["traj_uid"])
        self.starts = [next(places) for _, places in groupby(range(len(names)), key=names.__getitem__)]
        numbers = {names[start]: number for number, start in enumerate(self.starts)}
        self.episodes = [numbers[name] for name in names]
        uids: dict[str, int] = {}
        self.groups = [uids.setdefault(uid, len(uids)) for uid in batch.non_tensor_batch["uid"]]


def training_batch(
    config: Any, batch: DataProto, envs: EnvironmentManagerBase, played: Sequence[dict[str, Any]]
) -> DataProto:
    """A collected batch in the format of ``ContextManager.formulate_rollouts``.

    Args:
        config: The whole configuration, for scores and penalties.
        batch: The batch of a collector.
        envs: The manager from which it was collected.
        played: The collector's :attr:`~.TrajectoryCollector.played`, for metrics.

    Returns:
        ``batch``: ``input_ids``, ``attention_mask``, ``position_ids``, ``responses``, ``loss_mask``, ``response_mask``,
        ``rm_scores``, ``original_rm_scores``, and ``rollout_log_probs`` where known. ``non_tensor_batch``: the
        collector's columns, ``env_ids``, ``group_ids``, ``tags``, ``episode_ids`` and ``env_error`` (None: the batch
        has no failed trajectories). ``meta_info["metrics"]``.
    """
    import torch

    tensors, columns, places = batch.batch, dict(batch.non_tensor_batch), RowPlaces(batch)
    prompt, width = tensors["prompts"].shape[-1], tensors["input_ids"].shape[-1]
    mask = torch.zeros((len(batch), width))
    mask[:, prompt:] = tensors["attention_mask"][:, prompt:].to(mask.dtype)
    rollouts = _rollouts(config, batch, envs, places)
    final, original = _scores(config, rollouts, places)
    made = {
        "input_ids": tensors["input_ids"],
        "attention_mask": tensors["attention_mask"],
        "position_ids": tensors["position_ids"],
        "responses": tensors["input_ids"][:, 1:].clone(),
        "loss_mask": mask[:, 1:].clone(),
        "response_mask": mask[:, 1:].clone(),
        "rm_scores": _at_ends(mask, prompt, final),
        "original_rm_scores": _at_ends(mask, prompt, original),
    }
    if "rollout_log_probs" in tensors.keys():  # noqa: SIM118  # a TensorDict is no dict
        log_probs = torch.zeros((len(batch), width))
        log_probs[:, prompt:] = tensors["rollout_log_probs"]
        made["rollout_log_probs"] = log_probs[:, 1:] * made["response_mask"]
    columns["group_ids"] = object_array(places.groups)
    columns["episode_ids"] = object_array(places.episodes)
    columns["env_error"] = object_array(None for _ in places.episodes)
    columns["tags"] = object_array(rollouts[episode]["tag"] for episode in places.episodes)
    return data_proto(made, columns, {**batch.meta_info, "metrics": _metrics(batch, mask) | mean_metrics(played)})


def _rollouts(config: Any, batch: DataProto, envs: Any, places: RowPlaces) -> list[dict[str, Any]]:
    """The trajectories as rollout caches, from which scores are computed."""
    columns, tags = batch.non_tensor_batch, list(envs.tags)
    penalty = setting(config, "es_manager.format_penalty", float, -0.1)
    ends = [*places.starts[1:], len(batch)]
    return [
        {
            "tag": tags[int(columns["env_ids"][start])],
            "group_id": places.groups[start],
            "history": [{"reward": reward, "llm_response": ""} for reward in columns["rewards"][start:end]],
            "penalty": penalty * sum(not valid for valid in columns["is_action_valid"][start:end]),
        }
        for start, end in zip(places.starts, ends, strict=True)
    ]


def _scores(config: Any, rollouts: Sequence[dict[str, Any]], places: RowPlaces) -> tuple[list[float], list[float]]:
    """The score of each row, with penalties and normalization, and without."""
    settings = ContextSettings.read(config)
    if settings.use_turn_scores:
        plain = [turn["reward"] for rollout in rollouts for turn in rollout["history"]]
        final, ends = list(plain), [*places.starts[1:], len(plain)]
        for rollout, end in zip(rollouts, ends, strict=True):
            final[end - 1] += rollout["penalty"]
        return final, plain
    totals, originals = normalized_totals(rollouts, settings), [total_reward(rollout) for rollout in rollouts]
    return [totals[each] for each in places.episodes], [originals[each] for each in places.episodes]


def _at_ends(mask: torch.Tensor, prompt: int, scores: Sequence[float]) -> torch.Tensor:
    """Scores at the last token of each reply, or at the prompt's last if the reply is empty."""
    import torch

    found = torch.zeros_like(mask)
    last = prompt + mask.sum(-1).long() - 1
    found[torch.arange(len(mask)), last] = torch.tensor(scores, dtype=found.dtype)
    return found[:, 1:].contiguous()


def _metrics(batch: DataProto, mask: torch.Tensor) -> dict[str, float]:
    columns = batch.non_tensor_batch
    metrics = {"response_length": float(mask.sum(-1).mean())}
    for name in ("rewards", "lengths"):
        for kind in ("mean", "min", "max"):
            metrics[f"episode/{name.removesuffix('s')}/{kind}"] = float(columns[f"episode_{name}_{kind}"][0])
    metrics |= {f"episode/{name}": float(columns[name][0]) for name in columns if name.startswith("success")}
    metrics["episode/valid_action_ratio"] = float(np.mean([bool(valid) for valid in columns["is_action_valid"]]))
    return metrics


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
        from ragen.turns.factory import make_environments

        self._config = config
        self.collector = TrajectoryCollector(config, tokenizer)
        self.train, self.val = make_environments(config)

    def rollout(self, actor: Any, gen_batch: DataProto, val: bool) -> DataProto:
        """Collect a rollout as a training batch.

        Args:
            actor: The actor that answers prompts.
            gen_batch: Its ``meta_info`` is passed to the actor with every batch.
            val: Whether to play ``es_manager.val``.
        """
        envs = self.val if val else self.train
        batch = self.collector.multi_turn_loop(gen_batch, actor, envs, is_train=not val)
        return training_batch(self._config, batch, envs, self.collector.played)

    def close(self) -> None:
        """Close the environments; may be called twice."""
        try:
            self.train.close()
        finally:
            self.val.close()
