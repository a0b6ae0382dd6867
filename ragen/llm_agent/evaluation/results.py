"""What an evaluation came to, from the records of its trajectories: success with an interval, ``pass@k``, ``pass^k``.

An episode that the model cannot be judged by is no failure of the model: one whose environment failed (its record has
``env_error``), or whose prompt got no reply (``error``). Both are counted apart, and success is over the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.files import json_text, write_whole
from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED, MISSING_REPLY, count_replies, outcome, replies_line
from ragen.llm_agent.evaluation.tables import tables_of
from ragen.output import print_table
from ragen.statistics import (
    ALL,
    effective_episodes,
    mean,
    mean_pass_at_k,
    mean_pass_hat_k,
    wilson_interval,
)
from ragen.validity import env_error, failure_counts

if TYPE_CHECKING:
    from rich.console import Console

Record = Mapping[str, Any]
RESULTS = "results.json"
"""The name of the file beside a run's rows."""


@dataclass(frozen=True)
class TagResult:
    """One tag's result.

    Attributes:
        tag: The tag, or ``"all"``.
        seeds: How many groups there were; a group's members play the same seed.
        episodes: How many episodes there were.
        judged: How many of them say something of the model: neither of the two kinds of errors.
        failures: How many of those that are judged did not succeed.
        env_errors: How many episodes ended because the environment failed.
        env_error_types: Their number by type of error, see :func:`ragen.validity.failure_counts`.
        missing_replies: How many ended because a prompt got no reply.
        success: The share of those that are judged that succeeded; None where none is.
        low: Where the 95 % interval of that share begins.
        high: Where it ends.
        pass_at: k to the chance that some of k judged episodes of a seed succeeds, over the seeds that have so many.
        pass_all: k to the chance that all of k judged episodes of a seed succeed (``pass^k``), over the same seeds.
        reward: The mean of the rewards' sum, of those that are judged.
        turns: The mean number of replies.
        actions: The mean number of executed actions.
        invalid: The share of replies that were penalized.
        replies: What the model's replies were like, see :func:`~ragen.llm_agent.evaluation.replies.count_replies`.
    """

    tag: str
    seeds: int
    episodes: int
    judged: int
    failures: int
    env_errors: int
    env_error_types: dict[str, int]
    missing_replies: int
    success: float | None
    low: float
    high: float
    pass_at: dict[int, float]
    pass_all: dict[int, float]
    reward: float
    turns: float
    actions: float
    invalid: float
    replies: dict[str, Any]

    @property
    def env_error_share(self) -> float:
        """The share of episodes whose environment failed."""
        return self.env_errors / self.episodes if self.episodes else 0.0


def evaluate(records: Sequence[Record]) -> list[TagResult]:
    """The result of each tag, in the order in which the tags first occur, and of all if there are several.

    Args:
        records: Of trajectories, see :mod:`~ragen.llm_agent.rollout.trajectories`.
    """
    tags: dict[str, list[Record]] = {}
    for record in records:
        tags.setdefault(record["tag"], []).append(record)
    results = [_evaluate(tag, members) for tag, members in tags.items()]
    return [*results, _evaluate(ALL, records)] if len(tags) > 1 else results


def _evaluate(tag: str, records: Sequence[Record]) -> TagResult:
    judged = [record for record in records if outcome(record) == JUDGED]
    groups = list(groups_of(judged).values())
    share, independent = mean([float(record["success"]) for record in judged]), effective_episodes(groups)
    low, high = wilson_interval(share * independent, independent)
    counts, turns = Counter(map(outcome, records)), sum(len(record["actions"]) for record in records)
    return TagResult(
        tag=tag,
        seeds=len({record["group_id"] for record in records}),
        episodes=len(records),
        judged=len(judged),
        failures=sum(not record["success"] for record in judged),
        env_errors=counts[ENV_ERROR],
        env_error_types=failure_counts(map(env_error, records)),
        missing_replies=counts[MISSING_REPLY],
        success=share if judged else None,
        low=low,
        high=high,
        pass_at={k: chance for k in _counts(groups) if (chance := mean_pass_at_k(groups, k)) is not None},
        pass_all={k: chance for k in _counts(groups) if (chance := mean_pass_hat_k(groups, k)) is not None},
        reward=mean([round(float(sum(record["rewards"])), 12) for record in judged]),  # without rounding errors
        turns=turns / len(records) if records else 0.0,
        actions=mean([sum(map(len, record["actions"])) for record in records]),
        invalid=sum(sum(record.get("invalid", ())) for record in records) / turns if turns else 0.0,
        replies=count_replies(records),
    )


def groups_of(records: Iterable[Record]) -> dict[int, list[float]]:
    """Group id to the successes of its members, 0 or 1."""
    groups: dict[int, list[float]] = {}
    for record in records:
        groups.setdefault(record["group_id"], []).append(float(record["success"]))
    return groups


def _counts(groups: Sequence[Sequence[float]]) -> list[int]:
    """The k for which ``pass@k`` is told: powers of two, and the size of a group."""
    size = max(map(len, groups), default=0)
    return sorted({2**power for power in range(size.bit_length()) if 2**power < size} | ({size} if size else set()))


def with_pass_at_k(records: Sequence[dict[str, Any]], group_size: int) -> list[dict[str, Any]]:
    """The records with ``pass@k`` of their group among their metrics; without, where too few of it can be judged.

    Args:
        records: Of trajectories.
        group_size: The k.
    """
    judged = (record for record in records if outcome(record) == JUDGED)
    chances = {group: mean_pass_at_k([members], group_size) for group, members in groups_of(judged).items()}
    return [_with_chance(record, group_size, chances) for record in records]


def _with_chance(record: dict[str, Any], k: int, chances: Mapping[int, float | None]) -> dict[str, Any]:
    name, chance = f"{record['tag']}/pass@{k}", chances.get(record["group_id"])
    metrics = {key: value for key, value in record["metrics"].items() if key != name}
    return record | {"metrics": metrics if chance is None else metrics | {name: chance}}


def print_results(console: Console, results: Sequence[TagResult], usage: Mapping[str, float]) -> None:
    """Print the results as a table, and in a line each what replies were like and what was used, if it is known.

    Args:
        console: Where to.
        results: Of each tag, and of all.
        usage: What the model used.
    """
    names = [result.tag for result in results]
    for table in tables_of("Results", names, result_columns(results), console.width):
        print_table(console, table)
    if types := results[-1].env_error_types if results else {}:
        by_type = ", ".join(f"{count} {name}" for name, count in types.items())
        console.print(f"environments failed: {by_type}", soft_wrap=True)
    if counts := results[-1].replies if results else {}:
        console.print(replies_line(counts), soft_wrap=True)
    if usage:
        console.print(usage_line(usage), soft_wrap=True)


def result_columns(results: Sequence[TagResult]) -> dict[str, list[str]]:
    """Head to cells, one for each result; ``pass@1`` and ``pass^1`` are the success."""
    counts = sorted({k for result in results for k in result.pass_at if k > 1})
    known = [result.success is not None for result in results]
    return {
        "success": [f"{result.success:.1%}" if result.success is not None else "-" for result in results],
        "judged": [f"{result.judged}/{result.episodes}" for result in results],
        "95% interval": [
            f"{result.low:.1%} - {result.high:.1%}" if is_known else "-"
            for result, is_known in zip(results, known, strict=True)
        ],
        **{f"pass@{k}": [_share(result.pass_at.get(k)) for result in results] for k in counts},
        **{f"pass^{k}": [_share(result.pass_all.get(k)) for result in results] for k in counts},
        "failures": [str(result.failures) for result in results],
        "env errors": [str(result.env_errors) for result in results],
        "no reply": [str(result.missing_replies) for result in results],
        "reward": [
            f"{result.reward:z.3f}" if is_known else "-" for result, is_known in zip(results, known, strict=True)
        ],
        "turns": [f"{result.turns:.1f}" for result in results],
        "actions": [f"{result.actions:.1f}" for result in results],
        "invalid": [f"{result.invalid:.1%}" for result in results],
    }


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def usage_line(usage: Mapping[str, float]) -> str:
    """Counts as words, such as ``12 requests, 3 retries, 5,120 prompt tokens, $0.0042``."""
    words = [f"{count:,.0f} {_noun(name, count)}" for name, count in usage.items() if name != "cost"]
    return ", ".join([*words, *([f"${usage['cost']:,.4f}"] if "cost" in usage else [])])


def _noun(name: str, count: float) -> str:
    noun = name.replace("_", " ")
    return re.sub("ies$", "y", noun).removesuffix("s") if count == 1 else noun


def write_results(results: Sequence[TagResult], usage: Mapping[str, float], path: Path) -> None:
    """Write the results, in all and by tag, and the counts of what the model used, as JSON."""
    content = {**totals(results), "tags": [asdict(result) for result in results], "usage": dict(usage)}
    write_whole(path, json_text(content, indent=2) + "\n")


def totals(results: Sequence[TagResult]) -> dict[str, int]:
    """The counts of episodes over all tags: ``episodes``, ``judged`` and what became of them."""
    names = ("episodes", "judged", "failures", "env_errors", "missing_replies")
    whole = results[-1:]  # that of all where there are several
    return {name: sum(getattr(result, name) for result in whole) for name in names}


def env_error_share(results: Sequence[TagResult]) -> float:
    """The share of all episodes whose environment failed."""
    return results[-1].env_error_share if results else 0.0
