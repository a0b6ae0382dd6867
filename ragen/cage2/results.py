"""What training with a workflow came to, and what a whole search did."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ragen.cage2.compliance import EpisodeCompliance
from ragen.cage2.workflow import order_text

LAST = 5  # episodes of each environment that a result is of


@dataclass(frozen=True)
class Episode:
    """An episode that was played to its end.

    Attributes:
        reward: The sum of the environment's rewards, without what is paid for the workflow.
        compliance: How far it kept to the workflow.
    """

    reward: float
    compliance: EpisodeCompliance


@dataclass(frozen=True)
class WorkflowResult:
    """What training with a workflow came to.

    Attributes:
        iteration: Which training of the search it was, from 0.
        workflow: The order.
        train_reward: Mean over environments of the mean return of their last five episodes, as the environment pays.
        noise: The standard error of that, over environments; the chance of another training is not in it.
        train_compliance: The same mean of the rate of compliance, an episode without any fix counting 0.5.
        coverage: The same mean of fixes in an episode: a rate says little where it is small.
        avg_episodes_trained: Mean over environments of episodes that were played.
        stopped_early: Whether it ended because it complied.
        failed_episodes: Episodes that an environment's own error ended, and that are counted nowhere else.
        n_envs: Environments.
        simulator: Who played: "embedded" or "cage2".
        updates: Means of what was played between updates, one entry each.
    """

    iteration: int
    workflow: list[str]
    train_reward: float
    noise: float
    train_compliance: float
    coverage: float
    avg_episodes_trained: float
    stopped_early: bool
    failed_episodes: int
    n_envs: int
    simulator: str
    updates: list[dict[str, float | None]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Everything but the course of it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "updates"}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> WorkflowResult:
        """From what ``dataclasses.asdict`` gave."""
        return cls(**values)


def over_last(episodes: Sequence[Sequence[Episode]], last: int = LAST) -> dict[str, float]:
    """What the last episodes of some environments were like.

    Args:
        episodes: Of each environment, in their order.
        last: How many of them count, or fewer where there are fewer; environments without any are left out.

    Returns:
        ``reward``, ``noise``, ``compliance`` and ``coverage``, as in :class:`WorkflowResult`. NaN without any episode;
        the noise of a single environment is NaN too.
    """
    recent = [each[-last:] for each in episodes if each]
    if not recent:
        return dict.fromkeys(("reward", "noise", "compliance", "coverage"), math.nan)
    rewards = np.array([np.mean([episode.reward for episode in each]) for each in recent])
    rates = [np.mean([episode.compliance.rate_or_half for episode in each]) for each in recent]
    fixes = [np.mean([episode.compliance.fixes for episode in each]) for each in recent]
    noise = rewards.std(ddof=1) / math.sqrt(len(rewards)) if len(rewards) > 1 else math.nan
    return {
        "reward": float(rewards.mean()),
        "noise": float(noise),
        "compliance": float(np.mean(rates)),
        "coverage": float(np.mean(fixes)),
    }


@dataclass(frozen=True)
class Comparison:
    """The best and the worst workflow of a search.

    Attributes:
        best, worst: Their results.
        difference: Of their mean returns.
        noise: 1.96 standard errors of that difference, from the spread over environments.
    """

    best: WorkflowResult
    worst: WorkflowResult
    difference: float
    noise: float

    @classmethod
    def of(cls, results: Sequence[WorkflowResult]) -> Comparison:
        """Compare results, of which there must be one at least."""
        best = max(results, key=lambda each: each.train_reward)
        worst = min(results, key=lambda each: each.train_reward)
        noise = 1.96 * math.hypot(best.noise, worst.noise)
        return cls(best, worst, best.train_reward - worst.train_reward, noise)

    def lines(self) -> str:
        """Two lines and a verdict."""
        verdict = "more than" if self.difference > self.noise else "not more than"
        return (
            f"best:  {order_text(self.best.workflow)}: {self.best.train_reward:.1f}\n"
            f"worst: {order_text(self.worst.workflow)}: {self.worst.train_reward:.1f}\n"
            f"difference {self.difference:.1f}, {verdict} the noise of {self.noise:.1f} (95 %, over environments)"
        )


def table(results: Sequence[WorkflowResult]) -> str:
    """All results, the best first."""
    lines = [f"{'':>3} {'return':>8} {'± noise':>8} {'compliance':>10} {'fixes':>6} {'episodes':>8}  workflow"]
    for each in sorted(results, key=lambda result: -result.train_reward):
        numbers = f"{each.train_reward:8.1f} {each.noise:8.1f} {each.train_compliance:10.3f} {each.coverage:6.1f}"
        early = "*" if each.stopped_early else " "
        lines.append(
            f"{each.iteration:3d} {numbers} {each.avg_episodes_trained:7.1f}{early}  {order_text(each.workflow)}"
        )
    return "\n".join(lines)
