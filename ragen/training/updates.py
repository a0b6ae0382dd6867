"""One step of GRPO: verl's advantages, policy loss and aggregation, on a model in this process.

A batch is split twice. The optimizer takes a step per *mini-batch*. *Micro-batches* fit into memory; every loss is
divided by the mini-batch's counts, so that their number does not affect the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from ragen.extras import needs
from ragen.training.log_probs import log_probs_and_entropies
from ragen.training.training_batch import TrainingBatch, batch_of_rows
from ragen.training.trajectories import TokenRow

if TYPE_CHECKING:
    from ragen.config import Config

with needs("train", "`ragen train`"):
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from ragen.ppo import optimiser_step


_ENTROPY = "entropy_sum"  # sum over a step's tokens, in nats


def advantages_of(batch: TrainingBatch, normalise_by_std: bool) -> Tensor:
    """Advantages by verl's GRPO, ``(rows, tokens - 1)``; only those at sampled tokens are meaningful.

    It sees each trajectory once, even if its tokens form several rows; the result applies to all its rows.

    Args:
        batch: A batch.
        normalise_by_std: Whether they are divided by a group's standard deviation; without, it is Dr. GRPO
            (arXiv:2503.20783).
    """
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    firsts = batch.first_rows()
    scores = batch.scores[firsts][:, None].clone()
    found, _ = compute_grpo_outcome_advantage(
        scores, torch.ones_like(scores), batch.uids[firsts], norm_adv_by_std_in_grpo=normalise_by_std
    )
    by_episode = dict(zip((batch.episodes[row] for row in firsts), found[:, 0], strict=True))
    return torch.stack([by_episode[episode] for episode in batch.episodes])[:, None] * batch.response_mask


class Learner:
    """The model with its optimizer.

    Attributes:
        model: The model.
        optimizer: Its optimizer.
    """

    def __init__(self, model: PreTrainedModel, config: Config) -> None:
        """Start training a model, which is modified in place."""
        from verl.workers.config import ActorConfig

        self.model, self._config, self._keys = model, config, config.actor_rollout_ref.actor
        self._temperature = config.actor_rollout_ref.rollout.temperature or 1.0
        rate = 3e-4 if self._keys.optim.lr is None else self._keys.optim.lr
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
        low, high = self._keys.clip_ratio_low, self._keys.clip_ratio_high
        self._verl = ActorConfig(
            strategy="fsdp",  # verl requires a name; nothing is sharded here
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=self._keys.clip_ratio if low is None else low,
            clip_ratio_high=self._keys.clip_ratio if high is None else high,
        )

    def update(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        """Update the model with one batch.

        Args:
            batch: Rows with masks, scores and groups.
            step: The number of the step; determines the order of rows together with the seed.

        Returns:
            Metrics with verl's names.
        """
        batch, epochs = self.prepared(batch), self._keys.ppo_epochs
        found = [
            self._step(batch, rows) for epoch in range(epochs) for rows in self._mini_batches(len(batch), step, epoch)
        ]
        means = {name: fmean(metrics[name] for metrics in found) for name in found[0] if name != _ENTROPY}
        mask, rollouts = batch.response_mask.bool(), len(batch.first_rows())
        advantages, tokens = batch.columns["advantages"][mask], float(mask.sum())
        return means | {
            "rollout/entropy_sum": sum(metrics[_ENTROPY] for metrics in found) / epochs / rollouts,
            "rollout/n_generated_tokens": tokens / rollouts,
            "critic/advantages/mean": advantages.mean().item(),
            "critic/advantages/max": advantages.max().item(),
            "critic/advantages/min": advantages.min().item(),
            "train/rows": float(len(batch)),
            "train/tokens": tokens,
        }

    def prepared(self, batch: TrainingBatch) -> TrainingBatch:
        """The batch with all columns that a step needs, computed before the weights change."""
        columns = {"advantages": advantages_of(batch, self._config.algorithm.norm_adv_by_std_in_grpo)}
        if self._keys.ppo_epochs > 1 or len(batch) > self._keys.ppo_mini_batch_size:  # else the step's own are the old
            columns["old_log_probs"] = self._without_gradient(batch, 0)
        return batch.with_columns(**columns)

    def entropies(self, batch: TrainingBatch) -> list[list[float]]:
        """The entropy of the distribution of each sampled token, in nats, row by row."""
        found = self._without_gradient(batch, 1)
        return [row[mask.bool()].tolist() for row, mask in zip(found, batch.response_mask, strict=True)]

    def scores_of_thoughts(self, prompts: Sequence[Sequence[int]], thoughts: Sequence[Sequence[int]]) -> np.ndarray:
        """Summed log-probability of each thought after each prompt, float64 ``(thoughts, prompts)``."""
        pairs = [(prompt, thought) for thought in thoughts for prompt in prompts]
        rows = [TokenRow([*prompt, *thought], [0] * len(prompt) + [1] * len(thought)) for prompt, thought in pairs]
        found = self._without_gradient(batch_of_rows(rows, 0), 0)
        return found.double().sum(-1).reshape(len(thoughts), len(prompts)).numpy()

    @torch.no_grad()
    def _without_gradient(self, batch: TrainingBatch, which: int) -> Tensor:
        """Log-probabilities (0) or entropies (1) of the whole batch, computed micro-batch by micro-batch."""
        whole = torch.zeros_like(batch.response_mask)
        for rows in batch.micro_batches(range(len(batch)), self._keys.ppo_max_token_len_per_gpu):
            part = log_probs_and_entropies(self.model, batch.select(rows), self._temperature)[which]
            whole[torch.tensor(rows), whole.shape[1] - part.shape[1] :] = part
        return whole

    def _mini_batches(self, size: int, step: int, epoch: int) -> Iterator[list[int]]:
        order, most = list(range(size)), self._keys.ppo_mini_batch_size
        Random(f"{self._config.trainer.seed}/{step}/{epoch}").shuffle(order)
        for start in range(0, size, most):
            yield order[start : start + most]

    def _step(self, batch: TrainingBatch, rows: list[int]) -> dict[str, float]:
        """One step of the optimizer; returns its metrics."""
        metrics: dict[str, float] = defaultdict(float)
        tokens = int(batch.response_mask[rows].sum())
        counts = {"dp_size": 1, "batch_num_tokens": max(1, tokens), "global_batch_size": len(rows)}
        for part in batch.micro_batches(rows, self._keys.ppo_max_token_len_per_gpu):
            for name, value in self._gradient(batch.select(part), counts).items():
                metrics[name] += value
        metrics["actor/grad_norm"] = optimiser_step(self.optimizer, self.model, self._keys.grad_clip)
        return metrics

    def _gradient(self, part: TrainingBatch, counts: dict[str, int]) -> dict[str, float]:
        """Add a micro-batch's gradient to the model's; returns its part of the mini-batch's metrics."""
        from verl.trainer.ppo import core_algos

        mask, aggregation = part.response_mask, self._keys.loss_agg_mode
        log_probs, entropies = log_probs_and_entropies(self.model, part, self._temperature)
        self._verl.global_batch_info.update(counts)
        policy, found = core_algos.get_policy_loss_fn("vanilla")(  # type: ignore[call-arg]
            part.columns.get("old_log_probs", log_probs.detach()),
            log_probs,
            part.columns["advantages"],
            mask,
            aggregation,
            self._verl,
        )
        entropy = core_algos.agg_loss(entropies, mask, aggregation, **counts)
        (policy - self._keys.entropy_coeff * entropy).backward()
        share = float(mask.sum()) / counts["batch_num_tokens"]
        return {name: value * share for name, value in found.items()} | {
            _ENTROPY: (entropies.detach() * mask).sum().item(),
            "actor/pg_loss": policy.item(),
            "actor/entropy": entropy.item(),
        }
