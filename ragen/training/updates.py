"""One step of GRPO or PPO: verl's advantages, policy loss and aggregation, on a model in this process.

A batch is split twice. The optimizer takes a step per *mini-batch*. *Micro-batches* fit into memory; every loss is
divided by the mini-batch's counts, so that their number does not affect the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from random import Random
from statistics import fmean
from typing import Any

from ragen.extras import needs
from ragen.training.log_probs import log_probs_and_entropies, values, without_gradient
from ragen.training.settings import GAE, UpdateSettings
from ragen.training.tiny_model import ValueModel, frozen_copy
from ragen.training.training_batch import TrainingBatch

with needs("train", "`ragen train`"):
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from ragen.ppo import optimiser_step


_ENTROPY = "entropy_sum"  # sum over a step's tokens, in nats


def advantages_and_returns(batch: TrainingBatch, settings: UpdateSettings) -> tuple[Tensor, Tensor]:
    """Advantages and returns by verl's estimator.

    Estimators that compare trajectories see each of them once, even if its tokens form several rows; the result applies
    to all its rows.

    Args:
        batch: A batch, with ``columns["values"]`` for ``gae``.
        settings: Selects the estimator.

    Returns:
        Two tensors ``(rows, tokens - 1)``; only the values at sampled tokens are meaningful.
    """
    from verl.trainer.ppo import core_algos

    if settings.estimator == GAE:
        values, mask = batch.columns["values"], batch.response_mask
        return core_algos.compute_gae_advantage_return(batch.rewards, values, mask, settings.gamma, settings.lam)
    estimate = core_algos.get_adv_estimator_fn(settings.estimator)
    extra = {"norm_adv_by_std_in_grpo": settings.normalise_by_std} if settings.estimator == "grpo" else {}
    firsts = batch.first_rows()
    scores = batch.scores[firsts][:, None]
    found, _ = estimate(scores.clone(), torch.ones_like(scores), batch.uids[firsts], **extra)
    by_episode = dict(zip((batch.episodes[row] for row in firsts), found[:, 0], strict=True))
    advantages = torch.stack([by_episode[episode] for episode in batch.episodes])[:, None] * batch.response_mask
    return advantages, advantages


class Learner:
    """The model with optimizer, reference model and critic.

    Attributes:
        model: The actor.
        optimizer: Its optimizer.
        reference: The initial model; None without ``use_kl_loss``.
        critic: Predicts scores; None unless the estimator is ``gae``.
    """

    def __init__(self, model: PreTrainedModel, settings: UpdateSettings, seed: int) -> None:
        """Start training a model.

        Args:
            model: The model, which is modified in place.
            settings: The settings of updates.
            seed: Seed of the order of rows.
        """
        from verl.workers.config import ActorConfig

        self.model = model
        self.settings = settings
        self.seed = seed
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.99), weight_decay=0.0)
        self.reference = frozen_copy(model) if settings.use_kl_loss else None
        self.critic = ValueModel(model) if settings.estimator == GAE else None
        self.critic_optimizer = None
        if self.critic is not None:
            self.critic_optimizer = torch.optim.AdamW(
                self.critic.parameters(), lr=settings.critic_lr, betas=(0.9, 0.99), weight_decay=0.0
            )
        self._verl = ActorConfig(
            strategy="fsdp",  # verl requires a name; nothing is sharded here
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=settings.clip_ratio_low,
            clip_ratio_high=settings.clip_ratio_high,
        )

    def update(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        """Update the model with one batch.

        Args:
            batch: Rows with masks, rewards and groups.
            step: The number of the step; determines the order of rows together with the seed.

        Returns:
            Metrics with verl's names.
        """
        batch = self.prepared(batch)
        found = [
            self._step(batch, rows)
            for epoch in range(self.settings.epochs)
            for rows in self._mini_batches(len(batch), step, epoch)
        ]
        means = {name: fmean(metrics[name] for metrics in found) for name in found[0]}
        rollouts = len(batch.first_rows())
        sums = {"rollout/entropy_sum": sum(metrics[_ENTROPY] for metrics in found) / self.settings.epochs / rollouts}
        sums["rollout/n_generated_tokens"] = float(batch.response_mask.sum()) / rollouts
        return {name: value for name, value in means.items() if name != _ENTROPY} | sums | _batch_metrics(batch)

    def prepared(self, batch: TrainingBatch) -> TrainingBatch:
        """The batch with all columns that a step needs, computed before the weights change."""
        columns, settings = dict[str, Tensor](), self.settings
        if settings.epochs > 1 or len(batch) > settings.mini_batch_size:  # else the step's own are the old ones
            columns["old_log_probs"] = self.log_probs(batch)
        if self.reference is not None:
            columns["reference_log_probs"] = self.log_probs(batch, self.reference)
        if (critic := self.critic) is not None:
            columns["values"] = without_gradient(lambda part: values(critic, part), batch, settings.max_tokens)
        batch = batch.with_columns(**columns)
        advantages, returns = advantages_and_returns(batch, settings)
        return batch.with_columns(advantages=advantages, returns=returns)

    def entropies(self, batch: TrainingBatch) -> list[list[float]]:
        """The entropy of the distribution of each sampled token, in nats, row by row."""
        found = self._without_gradient(self.model, batch, 1)
        return [row[mask.bool()].tolist() for row, mask in zip(found, batch.response_mask, strict=True)]

    def log_probs(self, batch: TrainingBatch, model: PreTrainedModel | None = None) -> Tensor:
        """A model's log-probabilities of a batch's sampled tokens, ``(rows, tokens - 1)``."""
        return self._without_gradient(model or self.model, batch, 0)

    def _without_gradient(self, model: PreTrainedModel, batch: TrainingBatch, which: int) -> Tensor:
        def compute(part: TrainingBatch) -> Tensor:
            return log_probs_and_entropies(model, part, self.settings.temperature)[which]

        return without_gradient(compute, batch, self.settings.max_tokens)

    def _mini_batches(self, size: int, step: int, epoch: int) -> Iterator[list[int]]:
        order = list(range(size))
        Random(f"{self.seed}/{step}/{epoch}").shuffle(order)
        for start in range(0, size, self.settings.mini_batch_size):
            yield order[start : start + self.settings.mini_batch_size]

    def _step(self, batch: TrainingBatch, rows: list[int]) -> dict[str, float]:
        """One step of the optimizers; returns its metrics."""
        metrics: dict[str, float] = defaultdict(float)
        tokens = int(batch.response_mask[rows].sum())
        counts = {"dp_size": 1, "batch_num_tokens": max(1, tokens), "global_batch_size": len(rows)}
        for part in batch.micro_batches(rows, self.settings.max_tokens):
            selected = batch.select(part)
            share = float(selected.response_mask.sum()) / counts["batch_num_tokens"]
            parts = self._actor_gradient(selected, counts, share)
            if self.critic is not None:
                parts |= self._critic_gradient(self.critic, selected, counts, share)
            for name, value in parts.items():
                metrics[name] += value
        metrics["actor/grad_norm"] = optimiser_step(self.optimizer, self.model, self.settings.grad_clip)
        if self.critic is not None and self.critic_optimizer is not None:
            metrics["critic/grad_norm"] = optimiser_step(self.critic_optimizer, self.critic, self.settings.grad_clip)
        return metrics

    def _actor_gradient(self, part: TrainingBatch, counts: dict[str, int], share: float) -> dict[str, float]:
        """Add a micro-batch's gradient to the actor's; returns its part of the mini-batch's metrics."""
        from verl.trainer.ppo import core_algos

        settings, mask, columns = self.settings, part.response_mask, part.columns
        log_probs, entropies = log_probs_and_entropies(self.model, part, settings.temperature)
        self._verl.global_batch_info.update(counts)
        policy, found = core_algos.get_policy_loss_fn("vanilla")(  # type: ignore[call-arg]
            columns.get("old_log_probs", log_probs.detach()),
            log_probs,
            columns["advantages"],
            mask,
            settings.aggregation,
            self._verl,
        )
        entropy = core_algos.agg_loss(entropies, mask, settings.aggregation, **counts)
        loss = policy - settings.entropy_coeff * entropy
        metrics = {name: value * share for name, value in found.items()}
        metrics[_ENTROPY] = (entropies.detach() * mask).sum().item()
        metrics |= {"actor/pg_loss": policy.item(), "actor/entropy": entropy.item()}
        if self.reference is not None:
            reference: Any = columns["reference_log_probs"]
            penalty = core_algos.kl_penalty(log_probs, reference, settings.kl_loss_type)  # type: ignore[arg-type]
            kl = core_algos.agg_loss(penalty, mask, settings.aggregation, **counts)
            loss = loss + settings.kl_loss_coef * kl
            metrics["actor/kl_loss"] = kl.item()
        loss.backward()
        return metrics

    def _critic_gradient(
        self, critic: ValueModel, part: TrainingBatch, counts: dict[str, int], share: float
    ) -> dict[str, float]:
        """Add a micro-batch's gradient to the critic's; returns its part of the mini-batch's metrics."""
        from verl.trainer.ppo import core_algos

        loss, clipped = core_algos.compute_value_loss(
            values(critic, part),
            part.columns["returns"],
            part.columns["values"],
            part.response_mask,
            self.settings.cliprange_value,
            self.settings.aggregation,
            **counts,
        )
        loss.backward()
        return {"critic/vf_loss": loss.item(), "critic/vf_clipfrac": float(clipped) * share}

    def state_dict(self) -> dict[str, Any]:
        """The state for an exact resumption by :meth:`load_state_dict`."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of :meth:`state_dict`.

        Raises:
            KeyError, RuntimeError, ValueError: It belongs to another model or to other settings.
        """
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "reference": self.reference,
            "critic": self.critic,
            "critic_optimizer": self.critic_optimizer,
        }
        return {name: part for name, part in parts.items() if part is not None}


def _batch_metrics(batch: TrainingBatch) -> dict[str, float]:
    mask = batch.response_mask.bool()
    advantages = batch.columns["advantages"][mask]
    metrics = {
        "critic/advantages/mean": advantages.mean().item(),
        "critic/advantages/max": advantages.max().item(),
        "critic/advantages/min": advantages.min().item(),
        "train/rows": float(len(batch)),
        "train/tokens": float(mask.sum()),
    }
    if "values" in batch.columns:
        metrics["critic/values/mean"] = batch.columns["values"][mask].mean().item()
    return metrics
