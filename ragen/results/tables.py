"""The tables of a rollout in a terminal: figures per tag, where the time went, and the workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragen.errors import counted
from ragen.output import print_table
from ragen.results.figures import TagResult, whole
from ragen.results.rows import FAULTS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def percent(value: float | None) -> str:
    """A share as text; ``-`` for an unknown one."""
    return "-" if value is None else f"{value:.1%}"


def cells(result: TagResult) -> dict[str, str]:
    """A tag's figures as text, by head of a column."""
    is_known = result.success is not None
    return {
        "success": percent(result.success),
        "judged": f"{result.judged}/{result.episodes}",
        "95% interval": f"{result.low:.1%} - {result.high:.1%}" if is_known else "-",
        **{f"pass@{k}": percent(share) for k, share in result.pass_at.items() if k > 1},
        **{f"pass^{k}": percent(share) for k, share in result.pass_all.items() if k > 1},
        "failures": str(result.failures),
        "env errors": str(result.env_errors),
        "no reply": str(result.missing_replies),
        "reward": f"{result.reward:z.3f}" if is_known else "-",
        "turns": f"{result.turns:.1f}",
        "actions": f"{result.actions:.1f}",
        "invalid": percent(result.invalid),
    }


def columns_of(rows: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Columns of rows, in the order of the row that has most of them."""
    heads = max(rows, key=len, default={})
    return {head: [row.get(head, "") for row in rows] for head in heads}


def print_results(console: Console, results: Sequence[TagResult], usage: Mapping[str, float]) -> None:
    """Print the figures as a table, and in a line each failures, kinds of replies and usage, if there are any."""
    print_columns(console, "Results", [result.tag for result in results], columns_of([*map(cells, results)]))
    failed = ", ".join(f"{count} {name}" for result in results[-1:] for name, count in result.env_error_types.items())
    for line in [*([f"environments failed: {failed}"] if failed else []), *lines_of(whole(results), usage)]:
        console.print(line, soft_wrap=True)


def lines_of(result: TagResult | None, usage: Mapping[str, float]) -> list[str]:
    """Kinds of replies, and usage, in words; nothing that is unknown."""
    lines = []
    if result and (counts := result.replies):
        faults = [f"{counts[fault]:,} {fault.replace('_', ' ')}" for fault in FAULTS if counts[fault]]
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts["finish_reasons"].items())
        found = ", ".join(faults) or "none cut off, empty or refused by the server"
        lines.append(f"{counted(counts['count'], 'reply', 'replies')}: {found}; finish reasons: {reasons}")
    if any(usage.values()):
        words = [f"{count:,.0f} {_noun(name, count)}" for name, count in usage.items() if name != "cost"]
        lines.append(", ".join([*words, *([f"${usage['cost']:,.4f}"] if "cost" in usage else [])]))
    return lines


def _noun(name: str, count: float) -> str:
    noun = name.replace("_", " ")
    return re.sub("ies$", "y", noun).removesuffix("s") if count == 1 else noun


def summary_lines(seconds: Mapping[str, float], total: float, lanes: Iterable[Any]) -> list[str]:
    """The time of a rollout by activity, and the work of each process that hosts environments, from ``lanes``."""
    spent = ", ".join(f"{name} {each:.2f} s" for name, each in seconds.items())
    return [f"{total:.2f} s, of these {spent}"] + [
        f"{lane.lane}{f' on {lane.node}' if lane.node else ''} (pid {lane.pid}): "
        f"{counted(lane.envs, 'environment')} of {', '.join(lane.env_types)}, {counted(lane.turns, 'turn')} in "
        f"{lane.busy_s:.2f} s, {counted(lane.restarts, 'restart')}"
        for lane in lanes
        if lane.envs
    ]


def print_columns(
    console: Console, title: str, names: Sequence[str], columns: Mapping[str, Sequence[str]], named: str = "tag"
) -> None:
    """Print columns of numbers as one table, or, where the console is narrower, as several with the same names.

    Args:
        console: The console.
        title: The title of the first table.
        names: The first column.
        columns: The cells of each further column, one for each name, by head.
        named: The head of the first column.
    """
    first = max(map(len, (named, *names)))
    parts: list[list[str]] = [[]]
    left = console.width - first
    for head, column in columns.items():
        wide = max(map(len, (head, *column))) + 2
        if wide > left and parts[-1]:
            parts.append([])
            left = console.width - first
        parts[-1].append(head)
        left -= wide
    for number, heads in enumerate(parts):
        table = plain_table(title if number == 0 else f"{title}, continued", named, *heads)
        for row in zip(names, *(columns[head] for head in heads), strict=True):
            table.add_row(*row)
        print_table(console, table)


def plain_table(title: str, first: str, *numbers: str) -> Table:
    """A table whose numbers are never cut; names in its first column are folded where the terminal is narrow."""
    from rich.table import Table

    table = Table(title=f"\n{title}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.min_width = len(title)  # a title is folded to the width of its columns
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    return table
