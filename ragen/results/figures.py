"""The figures of a run, from its rows: success with an interval, ``pass@k``, ``pass^k``, and how episodes ended.

:func:`evaluate` is the only function that computes them. The terminal, ``results.json``, ``ragen compare`` and the page
show what it returns.

An episode that the model cannot be judged by is no failure of the model: one whose environment failed (its row has
``env_error``), or whose prompt got no reply (``error``). Both are counted apart, and success is over the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragen.files import json_text, write_whole
from ragen.results.rows import ENV_ERROR, JUDGED, MISSING_REPLY, Row, count_replies, outcome
from ragen.statistics import ALL, effective_episodes, mean, mean_pass_at_k, mean_pass_hat_k, wilson_interval
from ragen.validity import env_error, failure_counts


@dataclass(frozen=True)
class TagResult:
    """The figures of a tag.

    Attributes:
        tag: The tag, or ``"all"``.
        seeds: Number of groups; the members of a group play the same seed.
        episodes: Number of episodes.
        judged: Number of episodes that say something of the model: without either kind of error.
        failures: Number of judged episodes that did not succeed.
        env_errors: Number of episodes that ended because the environment failed.
        env_error_types: Their number by type of error, see :func:`ragen.validity.failure_counts`.
        missing_replies: Number of episodes that ended because a prompt got no reply.
        success: The share of judged episodes that succeeded; None where none is judged.
        low: The lower end of its 95 % interval.
        high: The upper end.
        pass_at: The probability that some of k judged episodes of a seed succeeds, by k, over the seeds with so many.
        pass_all: The probability that all of k judged episodes of a seed succeed (``pass^k``), over the same seeds.
        reward: The mean return of judged episodes.
        turns: The mean number of replies.
        actions: The mean number of executed actions.
        invalid: The share of replies that were penalized.
        replies: The kinds of replies, see :func:`~ragen.results.rows.count_replies`.
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


def evaluate(rows: Sequence[Row]) -> list[TagResult]:
    """The figures of each tag, in the order in which the tags first occur, and of all if there are several."""
    tags: dict[str, list[Row]] = {}
    for row in rows:
        tags.setdefault(row["tag"], []).append(row)
    results = [_evaluate(tag, members) for tag, members in tags.items()]
    return [*results, _evaluate(ALL, rows)] if len(tags) > 1 else results


def _evaluate(tag: str, rows: Sequence[Row]) -> TagResult:
    judged = [row for row in rows if outcome(row) == JUDGED]
    seeds: dict[Any, list[float]] = {}
    for row in judged:
        seeds.setdefault(row["group_id"], []).append(float(row["success"]))
    groups = list(seeds.values())
    share, independent = mean([float(row["success"]) for row in judged]), effective_episodes(groups)
    low, high = wilson_interval(share * independent, independent)
    size = max(map(len, groups), default=0)
    ks = sorted({2**power for power in range(size.bit_length())} | {size} if size else ())
    counts, turns = Counter(map(outcome, rows)), sum(len(row["actions"]) for row in rows)
    return TagResult(
        tag=tag,
        seeds=len({row["group_id"] for row in rows}),
        episodes=len(rows),
        judged=len(judged),
        failures=sum(not row["success"] for row in judged),
        env_errors=counts[ENV_ERROR],
        env_error_types=failure_counts(map(env_error, rows)),
        missing_replies=counts[MISSING_REPLY],
        success=share if judged else None,
        low=low,
        high=high,
        pass_at={k: mean_pass_at_k(groups, k) for k in ks},
        pass_all={k: mean_pass_hat_k(groups, k) for k in ks},
        reward=mean([reward_of(row) for row in judged]),
        turns=turns / len(rows),
        actions=mean([sum(map(len, row["actions"])) for row in rows]),
        invalid=sum(sum(row.get("invalid", ())) for row in rows) / turns if turns else 0.0,
        replies=count_replies(rows),
    )


def reward_of(row: Row) -> float:
    """The return without penalties; what is left of rounding errors is 0."""
    return round(float(sum(row["rewards"])), 12) + 0.0


def whole(results: Sequence[TagResult]) -> TagResult | None:
    """The figures over all tags; None without episodes."""
    return results[-1] if results else None


def write_results(results: Sequence[TagResult], usage: Mapping[str, float], path: Path) -> None:
    """Write the figures, in all and by tag, and the counts of what the model used, as JSON."""
    names = ("episodes", "judged", "failures", "env_errors", "missing_replies")
    content = {name: getattr(whole(results), name, 0) for name in names}
    tags = {"tags": [asdict(result) for result in results], "usage": dict(usage)}
    write_whole(path, json_text(content | tags, indent=2) + "\n")
