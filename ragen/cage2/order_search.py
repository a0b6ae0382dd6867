"""Bayesian optimization over workflows: a Gaussian process over all 120 orders, with upper confidence bounds.

The kernel is Mallows', ``signal * exp(-decay * Kendall's distance)``, positive definite on all orders for every decay
(Jiao and Vert 2015). Values are standardized. Signal, decay and the variance between two trainings of one workflow
maximize the posterior on a small grid, with weak priors, so that two values alone decide little; the standard error of
a value over its environments is added to its variance.

The proposed order has the largest mean plus ``beta`` standard deviations (Srinivas et al. 2010). An order may be
proposed again if a better estimate of it is worth more than a new order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from ragen.cage2.workflow import Order, WorkflowManager


class Kernel(NamedTuple):
    """Hyperparameters, for standardized values.

    Attributes:
        decay: Decay of the correlation with distance.
        signal: Variance of the values of orders.
        noise: Variance between two trainings of one order.
    """

    decay: float
    signal: float
    noise: float

    def log_prior(self) -> float:
        """The log-density of a weak log-normal prior: decay 0.3, signal 1, noise 0.1, within factors of 3, 2 and 4."""
        believed = zip(self, (0.3, 1.0, 0.1), (3.0, 2.0, 4.0), strict=True)
        return -0.5 * sum((math.log(value / center) / math.log(factor)) ** 2 for value, center, factor in believed)


GRID = tuple(
    Kernel(*values)
    for values in product((0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0), (0.3, 0.6, 1.0, 1.7, 3.0), (0.01, 0.03, 0.1, 0.3, 1.0))
)


class Belief(NamedTuple):
    """The posterior over all 120 orders, in the units of the values.

    Attributes:
        evidence: Log-likelihood of the observations.
        mean: ``(120,)``.
        std: Standard deviation of the order's mean return, without the noise of a training: ``(120,)``.
    """

    evidence: float
    mean: np.ndarray
    std: np.ndarray


class OrderSearch:
    """Records observations, and proposes orders, which depend only on its arguments and the observations.

    Attributes:
        manager: The list of orders.
        observations: Number, value and noise of each trained order.
    """

    def __init__(self, beta: float = 2.0, seed: int = 0) -> None:
        """Begin without observations.

        Args:
            beta: Standard deviations that are added to the mean.
            seed: Seed of the choice between equally good orders, as all are at first.
        """
        self.beta, self.manager = beta, WorkflowManager()
        self.observations: list[tuple[int, float, float]] = []
        self._preference = np.random.default_rng(seed).permutation(len(self.manager.orders))

    def observe(self, order: Sequence[str], value: float, noise: float = 0.0) -> None:
        """Record the result of training with an order.

        Args:
            order: The workflow.
            value: Its mean return.
            noise: The standard error of the mean.

        Raises:
            WorkflowError: The order is invalid.
        """
        self.observations.append((self.manager.number(order), value, noise))

    def propose(self) -> Order:
        """The order to try next."""
        belief = self.belief()
        bounds = np.round(belief.mean + self.beta * belief.std, 9)  # equal ones, up to the last digits
        return self.manager.orders[int(np.lexsort((self._preference, -bounds))[0])]

    def belief(self) -> Belief:
        """The current posterior over all orders."""
        numbers, raw, noises = np.reshape(self.observations, (-1, 3)).T
        center = raw.mean() if len(raw) else 0.0
        scale = (raw.std() if len(raw) > 1 else 0.0) or noises.max(initial=0.0) or 1.0
        seen = numbers.astype(int), (raw - center) / scale, (noises / scale) ** 2
        _, best = max((self._given(kernel, *seen).evidence + kernel.log_prior(), kernel) for kernel in GRID)
        evidence, mean, std = self._given(best, *seen)
        return Belief(evidence, center + scale * mean, scale * std)

    def _given(self, kernel: Kernel, numbers: np.ndarray, values: np.ndarray, noises: np.ndarray) -> Belief:
        """The posterior in standardized values."""
        similar = kernel.signal * np.exp(-kernel.decay * self.manager.distances[numbers])
        factor = np.linalg.cholesky(similar[:, numbers] + np.diag(noises + kernel.noise))
        white, halves = np.linalg.solve(factor, values), np.linalg.solve(factor, similar)
        evidence = -0.5 * white @ white - np.log(np.diag(factor)).sum()
        variance = np.maximum(kernel.signal - (halves**2).sum(0), 0.0)
        return Belief(float(evidence), white @ halves, np.sqrt(variance))
