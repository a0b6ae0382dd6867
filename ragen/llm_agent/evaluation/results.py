"""What an evaluation came to, read from the records of its trajectories: success with an interval, and ``pass@k``.

An episode whose prompt got no reply (its record has ``error``) counts as one that did not succeed, and is shown apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.llm_agent.evaluation.statistics import effective_episodes, mean, pass_at_k, wilson_interval
from ragen.llm_agent.evaluation.tables import plain_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Record = Mapping[str, Any]
ALL = "all"
_UNBOUNDED = 1000  # columns


@dataclass(frozen=True)
class TagResult:
    """One tag's result.

    Attributes:
        tag: The tag, or ``"all"``.
        seeds: How many groups there were; a group's members play the same seed.
        episodes: How many episodes there were.
        success: The share of them that succeeded.
        low: Where the 95 % interval of that share begins.
        high: Where it ends.
        pass_at: k to the chance that some of k episodes of a seed succeeds.
        reward: The mean of the rewards' sum.
        errors: How many episodes ended because a prompt got no reply.
    """

    tag: str
    seeds: int
    episodes: int
    success: float
    low: float
    high: float
    pass_at: dict[int, float]
    reward: float
    errors: int


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
    groups = list(groups_of(records).values())
    successes = [float(record["success"]) for record in records]
    share, independent = mean(successes), effective_episodes(groups)
    low, high = wilson_interval(share * independent, independent)
    return TagResult(
        tag=tag,
        seeds=len(groups),
        episodes=len(records),
        success=share,
        low=low,
        high=high,
        pass_at={k: mean([pass_at_k(len(group), int(sum(group)), k) for group in groups]) for k in _counts(groups)},
        reward=mean([sum(record["rewards"]) for record in records]),
        errors=sum("error" in record for record in records),
    )


def groups_of(records: Iterable[Record]) -> dict[int, list[float]]:
    """Group id to the successes of its members, 0 or 1."""
    groups: dict[int, list[float]] = {}
    for record in records:
        groups.setdefault(record["group_id"], []).append(float(record["success"]))
    return groups


def _counts(groups: Sequence[Sequence[float]]) -> list[int]:
    """The k for which ``pass@k`` is told: powers of two, and the size of a group."""
    size = min(map(len, groups))
    return sorted({2**power for power in range(size.bit_length()) if 2**power < size} | {size})


def with_pass_at_k(records: Sequence[dict[str, Any]], group_size: int) -> list[dict[str, Any]]:
    """The records with the ``pass@k`` of their whole group among their metrics, as the environment manager has it."""
    passed = {group: max(members) for group, members in groups_of(records).items()}
    return [
        record | {"metrics": record["metrics"] | {f"{record['tag']}/pass@{group_size}": passed[record["group_id"]]}}
        for record in records
    ]


def states_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """As much of the rollout caches as :func:`~ragen.llm_agent.evaluation.tables.summarise` reads."""
    return [
        {
            "tag": record["tag"],
            "penalty": record["penalty"],
            "metrics": record["metrics"],
            "history": [
                {"actions": actions, "reward": reward}
                for actions, reward in zip(record["actions"], record["rewards"], strict=True)
            ],
        }
        for record in records
    ]


def print_results(console: Console, results: Sequence[TagResult], usage: Mapping[str, float]) -> None:
    """Print the results as a table, and what the model's use came to in one line, if it was counted."""
    print_whole(console, result_table(results))
    if usage:
        console.print(usage_line(usage))


def print_whole(console: Console, table: Table) -> None:
    """Print a table with nothing cut off; in a narrower terminal its lines wrap."""
    width = console.width
    console.width = max(width, console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum)
    try:
        console.print(table)
    finally:
        console.width = width


def result_table(results: Sequence[TagResult]) -> Table:
    """A row per tag; ``pass@1`` is the success."""
    counts = sorted({k for result in results for k in result.pass_at if k > 1})
    names = ("seeds", "episodes", "success", "95% interval", *(f"pass@{k}" for k in counts), "failed")
    table = plain_table("Success", "tag", *names)
    for result in results:
        shares = (f"{result.success:.1%}", f"{result.low:.1%} - {result.high:.1%}")
        passed = (f"{result.pass_at[k]:.1%}" if k in result.pass_at else "" for k in counts)
        table.add_row(result.tag, str(result.seeds), str(result.episodes), *shares, *passed, str(result.errors))
    return table


def usage_line(usage: Mapping[str, float]) -> str:
    """Counts as words, such as ``12 requests, 3 retries, 5,120 prompt tokens, $0.0042``."""
    words = [f"{count:,.0f} {name.replace('_', ' ')}" for name, count in usage.items() if name != "cost"]
    return ", ".join([*words, *([f"${usage['cost']:,.4f}"] if "cost" in usage else [])])


def write_results(results: Sequence[TagResult], usage: Mapping[str, float], path: Path) -> None:
    """Write the results, and the counts of what the model used, as JSON."""
    content = {"tags": [asdict(result) for result in results], "usage": dict(usage)}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
