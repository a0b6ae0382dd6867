"""Proximal policy optimization (Schulman et al. 2017): advantages, losses, and one step of the optimizer.

Every recipe of this package learns with these; what differs between them is theirs: how a batch is laid out, what is
normalized, and in which order it is passed over. Language models are the exception for losses and advantages, which
are verl's there (per token, with its ways of aggregation); their optimizer step is this one.
"""

from __future__ import annotations

from typing import NamedTuple

from ragen.extras import needs

with needs("train", "PPO"):
    import torch
    from torch import Tensor, nn


class Losses(NamedTuple):
    """The parts of PPO's loss for a batch; scalars.

    Attributes:
        policy: Of the clipped surrogate objective, equation 7 of the paper, negated.
        value: Mean squared error of the values.
        entropy: Mean entropy of the policy.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor

    def total(self, value_coef: float, entropy_coef: float) -> Tensor:
        """What is minimized: the policy's and the weighted value's loss, less the weighted entropy."""
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
    """The parts of the loss. All tensors are of one shape.

    Args:
        log_probs: Of the actions, under the policy as it is now.
        old_log_probs: The same under the policy that chose them.
        advantages: Of the actions.
        entropies: Of the policy where they were chosen.
        values: The critic's.
        returns: What these should be.
        clip: How far a probability may go from what it was, as a share.
        mask: 1 for what counts, else 0; None if everything does.
    """
    ratio = (log_probs - old_log_probs).exp()
    gains = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return Losses(-_mean(gains, mask), _mean((values - returns).square(), mask), _mean(entropies, mask))


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016) of rollouts that end where their mask does.

    Args:
        rewards: ``(steps, rollouts)``.
        values: Of the states in which the actions were chosen, likewise.
        mask: 1 for a step, 0 behind the end of a rollout, likewise.
        gamma: Discount of a step.
        lam: The estimator's lambda.

    Returns:
        Advantages ``(steps, rollouts)``; 0 behind the end.
    """
    advantages = torch.zeros_like(rewards)
    carried, after = torch.zeros_like(rewards[0]), torch.zeros_like(rewards[0])
    for step in range(len(rewards) - 1, -1, -1):
        carried = (rewards[step] + gamma * after - values[step] + gamma * lam * carried) * mask[step]
        advantages[step] = carried
        after = values[step]
    return advantages


def optimiser_step(optimizer: torch.optim.Optimizer, model: nn.Module, grad_clip: float) -> float:
    """Step along the gradient that has been accumulated, and forget it.

    Args:
        optimizer: Of the model.
        model: Whose gradient it is.
        grad_clip: The largest norm that a gradient keeps.

    Returns:
        The norm before clipping. A gradient that is not finite is not stepped along.
    """
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    return values.mean() if mask is None else (values * mask).sum() / mask.sum()
