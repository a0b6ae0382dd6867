"""Which workflow to try next: a Gaussian process over all 120 orders, and upper confidence bounds.

The kernel is Mallows', ``signal * exp(-decay * Kendall's distance)``, positive definite on all orders for every decay
(Jiao and Vert 2015). Values are standardized. Signal, decay and the variance between two trainings of one workflow are
those of a small grid that make what was seen likeliest, with weak priors, so that two values alone decide nothing; the
noise of a value that comes from the spread over its environments is added to its own variance.

Proposed is the order whose mean plus ``beta`` standard deviations is largest (Srinivas et al. 2010). Of several that
are proposed at once, each is taken as if its mean had been seen already (GP-BUCB, Desautels et al. 2014). An order that
was tried may come again, where knowing it better is worth more than anything new.
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
        decay: How fast orders become different with their distance.
        signal: Variance of the values of orders.
        noise: Variance between two trainings of one order.
    """

    decay: float
    signal: float
    noise: float

    def log_prior(self) -> float:
        """Weak beliefs, each normal in the logarithm: decay 0.3, signal 1, noise 0.1, within factors of 3, 2 and 4."""
        believed = ((self.decay, 0.3, 3.0), (self.signal, 1.0, 2.0), (self.noise, 0.1, 4.0))
        return -0.5 * sum((math.log(value / center) / math.log(factor)) ** 2 for value, center, factor in believed)


GRID = tuple(
    Kernel(*values)
    for values in product((0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0), (0.3, 0.6, 1.0, 1.7, 3.0), (0.01, 0.03, 0.1, 0.3, 1.0))
)


@dataclass(frozen=True)
class Observation:
    """What training with an order gave.

    Attributes:
        number: The order's.
        value: The mean return.
        noise: The standard error of it, over environments.
    """

    number: int
    value: float
    noise: float


@dataclass(frozen=True)
class Belief:
    """What is believed of all 120 orders, in the units of the values.

    Attributes:
        mean: ``(120,)``.
        std: Of the order's mean return, without the noise of a training: ``(120,)``.
        kernel: The hyperparameters behind it.
    """

    mean: np.ndarray
    std: np.ndarray
    kernel: Kernel


class OrderSearch:
    """Remembers what was seen, and proposes orders. What it proposes follows from its arguments and from that alone.

    Attributes:
        manager: Knows the orders.
        observations: What was seen, in its order.
    """

    def __init__(self, beta: float = 2.0, seed: int = 0, manager: WorkflowManager | None = None) -> None:
        """Have seen nothing.

        Args:
            beta: Standard deviations that are added to the mean.
            seed: Of the choice between orders that are equally good, as all are at first.
            manager: Knows the orders; None for a new one.

        Raises:
            ConfigError: ``beta`` is negative or no number.
        """
        if not (math.isfinite(beta) and beta >= 0):
            raise ConfigError(f"beta = {beta}: expected a number of at least 0.")
        self.beta = beta
        self.manager = manager or WorkflowManager()
        self.observations: list[Observation] = []
        self._preference = np.random.default_rng(seed).permutation(len(self.manager.orders))

    def observe(self, order: Sequence[str], value: float, noise: float = 0.0) -> None:
        """Remember what training with an order gave.

        Args:
            order: The workflow.
            value: Its mean return.
            noise: The standard error of that.

        Raises:
            WorkflowError: The order is none.
            InputError: The value or the noise is not finite, or the noise negative.
        """
        number = self.manager.number(order)
        if not (math.isfinite(value) and math.isfinite(noise) and noise >= 0):
            raise InputError(f"value {value} with noise {noise}: expected finite numbers, and no negative noise.")
        self.observations.append(Observation(number, float(value), float(noise)))

    def propose(self, count: int = 1) -> list[Order]:
        """The orders to try next.

        Args:
            count: How many, to be tried at once.

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
        """What is believed of all orders now."""
        process = _Process.fitted(self.manager.distances, self.observations)
        return Belief(process.center + process.scale * process.mean(), process.scale * process.std(), process.kernel)


@dataclass(frozen=True)
class _Process:
    """A Gaussian process that has seen something; in standardized values."""

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
        """The process, had it seen its own mean of an order: means stay as they are, and it is surer about them."""
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
        """The Cholesky factor of the covariance of what was seen."""
        covariance = self._similarity(self.distances[np.ix_(self.numbers, self.numbers)])
        return np.linalg.cholesky(covariance + np.diag(self.noises + self.kernel.noise + _JITTER))

    def _similarity(self, distances: np.ndarray) -> np.ndarray:
        return self.kernel.signal * np.exp(-self.kernel.decay * distances)
