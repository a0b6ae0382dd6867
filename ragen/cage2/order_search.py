"""Bayesian optimization over workflows: a Gaussian process over all 120 orders, with upper confidence bounds.

The kernel is Mallows', ``signal * exp(-decay * Kendall's distance)``, positive definite on all orders for every decay
(Jiao and Vert 2015). Values are standardized. Signal, decay and the variance between two trainings of one workflow
maximize the posterior on a small grid, with weak priors, so that two values alone decide little; the standard error of
a value over its environments is added to its variance.

The proposed order has the largest mean plus ``beta`` standard deviations (Srinivas et al. 2010). If several are
proposed at once, each is treated as if its mean had been observed (GP-BUCB, Desautels et al. 2014). An order may be
proposed again if a better estimate of it is worth more than a new order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ragen.cage2.workflow import Order, WorkflowManager
from ragen.errors import ConfigError, InputError

_JITTER = 1e-9


@dataclass(frozen=True)
class Kernel:
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
        believed = ((self.decay, 0.3, 3.0), (self.signal, 1.0, 2.0), (self.noise, 0.1, 4.0))
        return -0.5 * sum((math.log(value / center) / math.log(factor)) ** 2 for value, center, factor in believed)


GRID = tuple(
    Kernel(*values)
    for values in product((0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0), (0.3, 0.6, 1.0, 1.7, 3.0), (0.01, 0.03, 0.1, 0.3, 1.0))
)


@dataclass(frozen=True)
class Observation:
    """The result of training with an order.

    Attributes:
        number: The order's number.
        value: The mean return.
        noise: Its standard error over environments.
    """

    number: int
    value: float
    noise: float


@dataclass(frozen=True)
class Belief:
    """The posterior over all 120 orders, in the units of the values.

    Attributes:
        mean: ``(120,)``.
        std: Standard deviation of the order's mean return, without the noise of a training: ``(120,)``.
        kernel: Its hyperparameters.
    """

    mean: np.ndarray
    std: np.ndarray
    kernel: Kernel


class OrderSearch:
    """Records observations, and proposes orders, which depend only on its arguments and the observations.

    Attributes:
        manager: The list of orders.
        observations: The observations in order.
    """

    def __init__(self, beta: float = 2.0, seed: int = 0, manager: WorkflowManager | None = None) -> None:
        """Begin without observations.

        Args:
            beta: Standard deviations that are added to the mean.
            seed: Seed of the choice between equally good orders, as all are at first.
            manager: The list of orders; None for a new one.

        Raises:
            ConfigError: ``beta`` is negative or not a number.
        """
        if not (math.isfinite(beta) and beta >= 0):
            raise ConfigError(f"beta = {beta}: expected a number of at least 0.")
        self.beta = beta
        self.manager = manager or WorkflowManager()
        self.observations: list[Observation] = []
        self._preference = np.random.default_rng(seed).permutation(len(self.manager.orders))

    def observe(self, order: Sequence[str], value: float, noise: float = 0.0) -> None:
        """Record the result of training with an order.

        Args:
            order: The workflow.
            value: Its mean return.
            noise: The standard error of the mean.

        Raises:
            WorkflowError: The order is invalid.
            InputError: The value or the noise is not finite, or the noise negative.
        """
        number = self.manager.number(order)
        if not (math.isfinite(value) and math.isfinite(noise) and noise >= 0):
            raise InputError(f"value {value} with noise {noise}: expected finite numbers, and no negative noise.")
        self.observations.append(Observation(number, float(value), float(noise)))

    def propose(self, count: int = 1) -> list[Order]:
        """The orders to try next.

        Args:
            count: Number of orders, to be tried at once.

        Raises:
            InputError: ``count`` is less than 1.
        """
        if count < 1:
            raise InputError(f"count = {count}: expected at least 1.")
        process = _Process.fitted(self.manager.distances, self.observations)
        mean = process.mean()
        chosen: list[int] = []
        for _ in range(count):
            bounds = mean + self.beta * process.std()
            best = np.flatnonzero(bounds >= bounds.max() - 1e-9)
            chosen.append(int(best[self._preference[best].argmin()]))
            process = process.hallucinated(chosen[-1])
        return [self.manager.orders[number] for number in chosen]

    def belief(self) -> Belief:
        """The current posterior over all orders."""
        process = _Process.fitted(self.manager.distances, self.observations)
        return Belief(process.center + process.scale * process.mean(), process.scale * process.std(), process.kernel)


@dataclass(frozen=True)
class _Process:
    """A Gaussian process conditioned on observations, in standardized values."""

    distances: np.ndarray
    kernel: Kernel
    numbers: np.ndarray
    values: np.ndarray
    noises: np.ndarray  # variances of single values
    center: float
    scale: float

    @classmethod
    def fitted(cls, distances: np.ndarray, observations: Sequence[Observation]) -> _Process:
        raw = np.array([each.value for each in observations], np.float64)
        center = float(raw.mean()) if len(raw) else 0.0
        scale = float(raw.std()) if len(raw) > 1 and raw.std() > 0 else max((e.noise for e in observations), default=0)
        scale = scale or 1.0
        noises = np.array([each.noise / scale for each in observations], np.float64) ** 2
        numbers = np.array([each.number for each in observations], np.int64)
        candidates = [cls(distances, kernel, numbers, (raw - center) / scale, noises, center, scale) for kernel in GRID]
        return max(candidates, key=lambda each: each._log_likelihood() + each.kernel.log_prior())

    def hallucinated(self, number: int) -> _Process:
        """The process conditioned on its own mean for an order: means are unchanged, variances decrease."""
        return _Process(
            self.distances,
            self.kernel,
            np.append(self.numbers, number),
            np.append(self.values, self.mean()[number]),
            np.append(self.noises, np.median(self.noises) if len(self.noises) else 0.0),
            self.center,
            self.scale,
        )

    def mean(self) -> np.ndarray:
        """``(120,)``."""
        if not len(self.numbers):
            return np.zeros(len(self.distances))
        factor = self._factor()
        weights = np.linalg.solve(factor.T, np.linalg.solve(factor, self.values))
        return self._similarity(self.distances[:, self.numbers]) @ weights

    def std(self) -> np.ndarray:
        """``(120,)``."""
        variance = np.full(len(self.distances), self.kernel.signal)
        if len(self.numbers):
            halves = np.linalg.solve(self._factor(), self._similarity(self.distances[self.numbers]))
            variance = variance - (halves**2).sum(0)
        return np.sqrt(np.maximum(variance, 0.0))

    def _log_likelihood(self) -> float:
        if not len(self.numbers):
            return 0.0
        factor = self._factor()
        white = np.linalg.solve(factor, self.values)
        return float(-0.5 * white @ white - np.log(np.diag(factor)).sum())

    def _factor(self) -> np.ndarray:
        """The Cholesky factor of the covariance of the observations."""
        covariance = self._similarity(self.distances[np.ix_(self.numbers, self.numbers)])
        return np.linalg.cholesky(covariance + np.diag(self.noises + self.kernel.noise + _JITTER))

    def _similarity(self, distances: np.ndarray) -> np.ndarray:
        return self.kernel.signal * np.exp(-self.kernel.decay * distances)
