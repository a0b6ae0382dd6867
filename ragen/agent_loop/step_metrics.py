"""Metrics of a training step's environments by tag; verl's own metrics mix all tags.

=============================  ======================================================================
metric                         mean over the tag's episodes of the step, unless it says otherwise
=============================  ======================================================================
``envs/<tag>/episodes``        how many there were
``envs/<tag>/success``         share that ended well
``envs/<tag>/solved_in_group`` share of groups in which some episode ended well
``envs/<tag>/reward``          sum of rewards, without format penalties
``envs/<tag>/score``           what is learned from: rewards and format penalties
``envs/<tag>/turns``           turns
``envs/<tag>/num_actions``     executed actions
``envs/<tag>/invalid_replies`` share of the turns, of all episodes, whose reply held an invalid action, or none
``envs/<tag>/env_error``       share of episodes whose environment failed for good
``envs/<tag>/seconds``         seconds that a trajectory waited for its environment, at work or in line
``envs/<tag>/busy_seconds``    seconds spent inside its environment, resets included and waiting in line left out
``envs/<tag>/longest_wait``    the most seconds that one call of an environment took, over all episodes
=============================  ======================================================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ragen.statistics import solved_in_group

PREFIX = "envs"
WARN_FROM = 0.1  # fraction of failed episodes of a tag from which a warning is printed

_MEANS = {
    "success": "success",
    "reward": "env_reward",
    "score": "score",
    "turns": "turns",
    "num_actions": "num_actions",
    "env_error": "env_failed",
    "seconds": "env_seconds",
    "busy_seconds": "env_busy",
}


class EpisodeSummary(NamedTuple):
    """One trajectory of a step.

    Attributes:
        tag: Key of ``custom_envs``.
        group: Its group of trajectories with the same tag and seed.
        numbers: The ``reward_extra_info`` of :class:`~ragen.agent_loop.loop.RagenEnvLoop`.
        error: Why its environment failed for good; "" if it did not.
        seed: Its seed.
    """

    tag: str
    group: str
    numbers: Mapping[str, float]
    error: str = ""
    seed: int = 0


def metrics_by_tag(episodes: Iterable[EpisodeSummary]) -> dict[str, float]:
    """The metrics of a step's episodes, as the table above names them."""
    metrics: dict[str, float] = {}
    for tag, played in sorted(_by_tag(episodes).items()):
        for name, value in _metrics(played).items():
            metrics[f"{PREFIX}/{tag}/{name}"] = float(value)
    return metrics


def failing_tags(episodes: Iterable[EpisodeSummary]) -> list[str]:
    """A sentence for each tag whose environments failed in more than a tenth of its episodes."""
    told = []
    for tag, played in sorted(_by_tag(episodes).items()):
        failed = [episode for episode in played if episode.numbers["env_failed"]]
        if len(failed) > WARN_FROM * len(played):
            told.append(
                f"environments of tag {tag!r} failed in {len(failed)} of {len(played)} episodes of this step, which "
                f"count as errors and teach little; the first says: {_first_line(failed[0].error)} Look at the failure "
                "crash reports (es_manager.crash_report_dir, ragen replay) or check the environment (ragen check)."
            )
    return told


def _by_tag(episodes: Iterable[EpisodeSummary]) -> dict[str, list[EpisodeSummary]]:
    tags: dict[str, list[EpisodeSummary]] = defaultdict(list)
    for episode in episodes:
        tags[episode.tag].append(episode)
    return tags


def _metrics(played: Sequence[EpisodeSummary]) -> dict[str, float]:
    numbers = [episode.numbers for episode in played]
    groups: dict[str, list[float]] = defaultdict(list)
    for episode in played:
        groups[episode.group].append(episode.numbers["success"])
    turns = sum(each["turns"] for each in numbers)
    return {
        "episodes": len(played),
        **{name: fmean(each[key] for each in numbers) for name, key in _MEANS.items()},
        "solved_in_group": solved_in_group(groups.values()),
        "invalid_replies": sum(each["invalid_replies"] for each in numbers) / turns if turns else 0.0,
        "longest_wait": max(each["longest_wait"] for each in numbers),
    }


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "nothing"
    return line if line.endswith(".") else f"{line}."


def add_metrics(episodes: Sequence[EpisodeSummary], metrics: dict[str, Any]) -> None:
    """Add the metrics of a step's episodes, and print a warning for tags whose environments fail."""
    metrics.update(metrics_by_tag(episodes))
    for sentence in failing_tags(episodes):
        print(f"WARNING: {sentence}", flush=True)  # where verl prints its metrics


def episodes_of(batch: Any) -> list[EpisodeSummary]:
    """A step's trajectories in the transfer queue; one with a row per turn counts once.

    Args:
        batch: verl's ``KVBatchMeta``, of keys ``<uid of the group>_<number in the group>_<row>``.
    """
    import transfer_queue as queue

    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    last = {key.rpartition("_")[0]: key for key in keys}
    if not last:
        return []
    data = queue.kv_batch_get(keys=list(last.values()), partition_id=batch.partition_id, select_fields=["extra_fields"])
    fields = data.get("extra_fields").tolist()
    return [
        summary
        for trajectory, extra in zip(last, fields, strict=True)
        if (summary := summary_of(trajectory, extra)) is not None
    ]


def summary_of(trajectory: str, extra: Any) -> EpisodeSummary | None:
    """The summary of a trajectory by its agent loop; None for another agent loop's, which plays no environment.

    Args:
        trajectory: ``<uid of the group>_<number in the group>``.
        extra: Its ``extra_fields``.
    """
    if not isinstance(extra, dict) or "env_tag" not in extra:
        return None
    group = trajectory.rpartition("_")[0]
    error, seed = extra.get("env_error", ""), extra.get("env_seed", 0)
    return EpisodeSummary(extra["env_tag"], group, extra["reward_extra_info"], error, seed)
