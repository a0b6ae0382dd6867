"""Results of trainings and of whole searches, and their files.

Files are written atomically, and reading them runs no code from them. ``search.json`` holds the state from which a
search resumes: settings, and the result of each finished workflow. ``results.json`` is derived from it for readers.
``policies/`` has the policy of each workflow.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ragen.cage2.settings import SearchSettings
from ragen.cage2.workflow import EpisodeCompliance, order_text
from ragen.errors import CheckpointError
from ragen.extras import needs
from ragen.files import json_text, replacing
from ragen.statistics import z_value

LAST = 5  # last episodes of each environment, over which a result is averaged


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        reward: The sum of the environment's rewards, without those for compliance.
        compliance: Its compliance with the workflow.
    """

    reward: float
    compliance: EpisodeCompliance


@dataclass(frozen=True)
class WorkflowResult:
    """The result of training with a workflow.

    Attributes:
        iteration: Index of the training in the search, from 0.
        workflow: The order.
        train_reward: Mean over environments of the mean return of their last five episodes, without rewards for
            compliance.
        noise: Its standard error over environments, without the variance between trainings.
        train_compliance: The same mean of the rate of compliance, where an episode without fixes counts 0.5.
        coverage: The same mean of fixes per episode; if it is small, the rate is not informative.
        avg_episodes_trained: Mean over environments of episodes played.
        stopped_early: Whether it ended because it complied.
        failed_episodes: Episodes ended by an error of the environment, which are counted nowhere else.
        failures: Their number by type of error.
        n_envs: Number of environments.
        simulator: "embedded" or "cage2".
        updates: Means over the steps between updates, one entry each.
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
    failures: dict[str, int] = field(default_factory=dict)
    updates: list[dict[str, float | None]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """All fields except ``updates``."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "updates"}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> WorkflowResult:
        """A result from the output of ``dataclasses.asdict``."""
        return cls(**values)


def over_last(episodes: Sequence[Sequence[Episode]], last: int = LAST) -> dict[str, float]:
    """Means over the last episodes of environments.

    Args:
        episodes: The episodes of each environment, in order.
        last: How many of them count, if there are as many; environments without episodes are ignored.

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
        difference: Difference of their mean returns.
        noise: Half of that difference's 95 % interval, from the spread over environments.
    """

    best: WorkflowResult
    worst: WorkflowResult
    difference: float
    noise: float

    @classmethod
    def of(cls, results: Sequence[WorkflowResult]) -> Comparison:
        """Compare results; at least one is required."""
        best = max(results, key=lambda each: each.train_reward)
        worst = min(results, key=lambda each: each.train_reward)
        noise = z_value() * math.hypot(best.noise, worst.noise)
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


# Files


VERSION = 1


class SearchRecords:
    """The folder of a search.

    Attributes:
        folder: Its path.
    """

    def __init__(self, folder: Path) -> None:
        """Set the folder, which need not exist."""
        self.folder = folder

    @property
    def results_path(self) -> Path:
        """The path of the results for readers."""
        return self.folder / "results.json"

    def policy_path(self, iteration: int) -> Path:
        """The path of a workflow's policy."""
        return self.folder / "policies" / f"workflow_{iteration:03d}.pt"

    def read(self, settings: SearchSettings) -> list[WorkflowResult]:
        """The results of the search in this folder; empty if there is none.

        Raises:
            CheckpointError: They cannot be read, or belong to a search with other settings.
        """
        path = self.folder / "search.json"
        if not path.exists():
            return []
        try:
            state = json.loads(path.read_text("utf-8"))
            version, before = state["version"], state["settings"]
            results = [WorkflowResult.of(each) for each in state["results"]]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read: remove it, or give another checkpoint_dir.") from error
        if version != VERSION:
            raise CheckpointError(f"{path} is of version {version}, and this one reads {VERSION}: give another folder.")
        for name, value in settings.followed().items():
            if before.get(name) != value:
                raise CheckpointError(
                    f"the search in {self.folder} had {name} = {before.get(name)!r}, and now it is {value!r}: give it "
                    "what it had, or another checkpoint_dir."
                )
        return results

    def write(self, settings: SearchSettings, results: Sequence[WorkflowResult]) -> None:
        """Write all results so far.

        Raises:
            CheckpointError: They cannot be written; the old file is unchanged.
        """
        state = {
            "version": VERSION,
            "settings": settings.followed(),
            "results": [dataclasses.asdict(each) for each in results],
        }
        self._write_json(self.folder / "search.json", state)
        self._write_json(self.results_path, [each.row() for each in results])

    def write_policy(self, iteration: int, state: dict[str, Any]) -> None:
        """Write the policy of a workflow.

        Raises:
            CheckpointError: It cannot be written.
        """
        import torch

        self._write(self.policy_path(iteration), lambda file: torch.save(state, file))

    def _write_json(self, path: Path, value: Any) -> None:
        text = json_text(value, indent=1) + "\n"
        self._write(path, lambda file: file.write(text.encode()))

    @staticmethod
    def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
        try:
            with replacing(path, durable=True) as file:
                fill(file)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error}") from error


# The plot


_SHORT = {"defender": "def", "enterprise": "ent", "op_server": "srv", "op_host": "op", "user": "usr"}
_MOST_CURVES = 10  # the number of distinguishable colors


@needs("cage2", "a picture of how it went")
def draw_search(path: Path, results: Sequence[WorkflowResult]) -> Path:
    """Plot the results of a search, the best order at the top.

    Args:
        path: The ``.png`` file.
        results: At least one result.

    Returns:
        ``path``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranked = sorted(results, key=lambda each: each.train_reward)
    rows = range(len(ranked))
    labels = [f"{' > '.join(_SHORT[name] for name in each.workflow)}  #{each.iteration}" for each in ranked]
    figure = Figure(figsize=(13, 2.5 + 0.28 * len(ranked)), layout="constrained")
    FigureCanvasAgg(figure)
    returns, rates, curves = figure.subplots(1, 3, width_ratios=(4, 3, 4))
    noises = [z_value() * each.noise for each in ranked]
    returns.errorbar([each.train_reward for each in ranked], rows, xerr=noises, fmt="o", capsize=3)
    returns.set_yticks(rows, labels)
    returns.set_xlabel(f"return of the last episodes, with 95 % intervals\n({ranked[0].simulator} simulator)")
    rates.barh(rows, [each.train_compliance for each in ranked], color="C2", alpha=0.6)
    for row, each in zip(rows, ranked, strict=True):
        rates.text(0.02, row, f"{each.coverage:.0f} fixes", va="center", fontsize=8)
    rates.set_yticks(rows, [""] * len(ranked))
    rates.set_ylim(returns.get_ylim())
    rates.set_xlim(0, 1)
    rates.set_xlabel("compliance of the last episodes")
    for each in ranked[::-1][:_MOST_CURVES]:
        seen = [(entry["episodes"], entry["reward"]) for entry in each.updates if entry["reward"] is not None]
        curves.plot(*zip(*seen, strict=True), label=f"#{each.iteration}")
    curves.set_xlabel("episodes of each environment")
    curves.set_ylabel("return")
    curves.legend(fontsize=7, ncols=2)
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return path
