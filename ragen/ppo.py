"""Proximal policy optimization (Schulman et al. 2017): updates of a model.

All recipes of this package use these functions; they differ in the layout of batches, in normalization, and in the
order of passes. Language models are an exception: their losses and advantages are verl's (per token, with its
aggregation modes), but their optimizer step is this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ragen.extras import needs

with needs("train", "PPO"):
    import torch
    from torch import Tensor, nn


class Batch(NamedTuple):
    """The data of a step of the optimizer; all tensors but ``inputs`` and ``actions`` have the same shape.

    Attributes:
        inputs, actions: The arguments of the model's ``evaluate``.
        log_probs: Log-probabilities of the actions under the policy that chose them.
        advantages: Advantages of the actions; None for the returns minus the critic's current values.
        returns: Targets of the values.
        mask: Whether an entry counts.
    """

    inputs: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor | None
    returns: Tensor
    mask: Tensor


def update(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    clip: float,
    value_coef: float,
    entropy_coef: float,
    grad_clip: float,
) -> dict[str, float]:
    """Take a step for each batch.

    Args:
        model: Has ``evaluate``, which returns log-probabilities, entropies and values.
        optimizer: Its optimizer.
        batches: The batches.
        clip: Clip range of the probability ratio.
        value_coef: Weight of the values' loss.
        entropy_coef: Weight of the entropy.
        grad_clip: Maximum norm of the gradient.

    Returns:
        Means over the batches: ``policy_loss`` (the negated clipped surrogate objective, equation 7 of the paper),
        ``value_loss`` (the mean squared error of the values) and ``entropy``.
    """
    parts = []
    for inputs, actions, log_probs, advantages, returns, mask in batches:
        now, entropies, values = model.evaluate(inputs, actions)
        gains = returns - values.detach() if advantages is None else advantages
        ratio = (now - log_probs).exp()
        surrogate = torch.minimum(ratio * gains, ratio.clamp(1 - clip, 1 + clip) * gains)
        policy, value, entropy = (each[mask].mean() for each in (-surrogate, (values - returns).square(), entropies))
        (policy + value_coef * value - entropy_coef * entropy).backward()
        optimiser_step(optimizer, model, grad_clip)
        parts.append([policy.item(), value.item(), entropy.item()])
    return dict(zip(("policy_loss", "value_loss", "entropy"), np.mean(parts, 0).tolist(), strict=True))


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
