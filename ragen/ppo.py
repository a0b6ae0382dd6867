"""Proximal policy optimization (Schulman et al. 2017): advantages, losses, and one step of the optimizer.

All recipes of this package use these functions; they differ in the layout of batches, in normalization, and in the
order of passes. Language models are an exception: their losses and advantages are verl's (per token, with its
aggregation modes), but their optimizer step is this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ragen.extras import needs

with needs("train", "PPO"):
    import torch
    from torch import Tensor, nn


class Losses(NamedTuple):
    """The parts of PPO's loss for a batch; scalars.

    Attributes:
        policy: The negated clipped surrogate objective, equation 7 of the paper.
        value: Mean squared error of the values.
        entropy: Mean entropy of the policy.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor

    def total(self, value_coef: float, entropy_coef: float) -> Tensor:
        """The total loss: policy loss plus weighted value loss minus weighted entropy."""
        return self.policy + value_coef * self.value - entropy_coef * self.entropy


def losses(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    entropies: Tensor,
    values: Tensor,
    returns: Tensor,
    clip: float,
    mask: Tensor | None = None,
) -> Losses:
    """The parts of the loss. All tensors have the same shape.

    Args:
        log_probs: Log-probabilities of the actions under the current policy.
        old_log_probs: Log-probabilities under the policy that chose them.
        advantages: Advantages of the actions.
        entropies: Entropies of the policy in the states.
        values: The critic's values.
        returns: Targets of the values.
        clip: Clip range of the probability ratio.
        mask: 1 for entries that count, else 0; None if all count.
    """
    ratio = (log_probs - old_log_probs).exp()
    gains = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return Losses(-_mean(gains, mask), _mean((values - returns).square(), mask), _mean(entropies, mask))


def means(parts: Sequence[Losses]) -> dict[str, float]:
    """The means of some losses: ``policy_loss``, ``value_loss`` and ``entropy``."""
    columns = zip(("policy_loss", "value_loss", "entropy"), zip(*parts, strict=True), strict=True)
    return {name: float(np.mean([each.item() for each in column])) for name, column in columns}


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016) of rollouts that end where their mask does.

    Args:
        rewards: ``(steps, rollouts)``.
        values: Values of the states in which the actions were chosen, likewise.
        mask: 1 for a step, 0 after the end of a rollout, likewise.
        gamma: Discount of a step.
        lam: The estimator's lambda.

    Returns:
        Advantages ``(steps, rollouts)``; 0 after the end.
    """
    advantages = torch.zeros_like(rewards)
    carried, after = torch.zeros_like(rewards[0]), torch.zeros_like(rewards[0])
    for step in range(len(rewards) - 1, -1, -1):
        carried = (rewards[step] + gamma * after - values[step] + gamma * lam * carried) * mask[step]
        advantages[step] = carried
        after = values[step]
    return advantages


def optimiser_step(optimizer: torch.optim.Optimizer, model: nn.Module, grad_clip: float) -> float:
    """Take a step with the accumulated gradient, and clear it.

    Args:
        optimizer: The model's optimizer.
        model: The model.
        grad_clip: Maximum norm of the gradient.

    Returns:
        The norm before clipping. If it is not finite, no step is taken.
    """
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    return values.mean() if mask is None else (values * mask).sum() / mask.sum()
