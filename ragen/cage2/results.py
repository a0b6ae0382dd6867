"""Results of trainings and of whole searches, and their files.

``search.json`` holds the state from which a search resumes: settings, and the result of each finished workflow.
``results.json`` is derived from it for readers. ``policies/`` has the policy of each workflow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ragen.cage2.settings import SearchSettings
from ragen.cage2.workflow import EpisodeCompliance
from ragen.errors import CheckpointError
from ragen.files import json_text, write_whole

LAST = 5  # last episodes of each environment, over which a result is averaged


class Episode(NamedTuple):
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
        n_envs: Number of environments.
        simulator: "embedded" or "cage2".
        failures: Failed episodes by type of error.
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


def over_last(episodes: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """Means over the last five episodes of environments; those without episodes are ignored.

    Args:
        episodes: The episodes of each environment, in order.

    Returns:
        ``train_reward``, ``noise``, ``train_compliance`` and ``coverage``, as in :class:`WorkflowResult`. The noise of
        less than two environments is NaN.
    """
    recent = [each[-LAST:] for each in episodes if each]
    rewards = np.array([np.mean([episode.reward for episode in each]) for each in recent])
    rates = [np.mean([episode.compliance.rate for episode in each]) for each in recent]
    fixes = [np.mean([episode.compliance.fixes for episode in each]) for each in recent]
    if len(recent) < 2:
        return {"noise": math.nan}
    return {
        "train_reward": float(rewards.mean()),
        "noise": float(rewards.std(ddof=1) / math.sqrt(len(rewards))),
        "train_compliance": float(np.mean(rates)),
        "coverage": float(np.mean(fixes)),
    }


def read(folder: Path, settings: SearchSettings) -> list[WorkflowResult]:
    """The results of the search in a folder; empty if there is none.

    Raises:
        CheckpointError: They cannot be read, or belong to a search with other settings.
    """
    path = folder / "search.json"
    if not path.exists():
        return []
    try:
        state = json.loads(path.read_text("utf-8"))
        before, results = state["settings"], [WorkflowResult(**each) for each in state["results"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: remove it, or give another checkpoint_dir.") from error
    for name, value in settings.followed().items():
        if before.get(name) != value:
            raise CheckpointError(
                f"the search in {folder} had {name} = {before.get(name)!r}, and now it is {value!r}: give it what it "
                "had, or another checkpoint_dir."
            )
    return results


def write(folder: Path, settings: SearchSettings, results: Sequence[WorkflowResult], policy: dict[str, Any]) -> None:
    """Write the policy of the last result, then all results so far.

    Raises:
        CheckpointError: They cannot be written; the old files are unchanged.
    """
    from ragen.checkpoints import save

    rows = [asdict(each) for each in results]
    texts = {"search.json": {"settings": settings.followed(), "results": rows}, "results.json": rows}
    save(folder / "policies" / f"workflow_{results[-1].iteration:03d}.pt", policy)
    try:
        for name, value in texts.items():
            write_whole(folder / name, json_text(value, indent=1) + "\n", durable=True)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error}") from error


def table(results: Sequence[WorkflowResult]) -> str:
    """All results, the best first."""
    lines = [f"{'':>3} {'return':>8} {'± noise':>8} {'compliance':>10} {'fixes':>6} {'episodes':>8}  workflow"]
    for each in sorted(results, key=lambda result: -result.train_reward):
        numbers = f"{each.train_reward:8.1f} {each.noise:8.1f} {each.train_compliance:10.3f} {each.coverage:6.1f}"
        played = f"{each.avg_episodes_trained:7.1f}{'*' if each.stopped_early else ' '}"
        lines.append(f"{each.iteration:3d} {numbers} {played}  {' > '.join(each.workflow)}")
    return "\n".join(lines)
