"""What a rollout came to, in tables: results per tag, where the time went, what each worker did, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from envlanes.stats import gathered
from ragen.output import print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def shown_p(p: float) -> str:
    """A p-value with three decimals; never ``0.000``."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def print_summary(
    console: Console,
    seconds: Mapping[str, float],
    total: float,
    lanes: Sequence[Any] = (),
    placement: Mapping[str, str] | None = None,
) -> None:
    """Print where the time went, and who did what; what a rollout came to is told by ``results.print_results``.

    Args:
        console: Where to.
        seconds: What took how long, in seconds; what they leave of ``total`` is shown as "other".
        total: How long the rollout took.
        lanes: The manager's ``LaneStats``, one per process that hosts environments.
        placement: Where each tag's environments were placed, and why.
    """
    for table in (time_table(seconds, total), lane_table(lanes), placement_table(placement or {})):
        if table.row_count:
            print_table(console, table)


def time_table(seconds: Mapping[str, float], total: float) -> Table:
    """Where the time went, a row per part."""
    table = plain_table("Time", "part", "seconds", "share")
    other = max(0.0, total - sum(seconds.values()))
    for name, spent in [*seconds.items(), ("other", other), ("total", total)]:
        table.add_row(name, f"{spent:.2f}", f"{spent / total:.0%}" if total else "")
    return table


def lane_table(lanes: Sequence[Any]) -> Table:
    """What each process that hosts environments did, a row per lane, or per many that are alike."""
    table = plain_table("Workers", "worker", "pid", "envs", "turns", "busy s", "restarts")
    table.add_column("environment types", overflow="fold")
    for lane in gathered(lanes):
        counts = (
            "" if lane.pid is None else str(lane.pid),
            str(lane.envs),
            str(lane.turns),
            f"{lane.busy_s:.2f}",
            str(lane.restarts),
        )
        name = f"{lane.lane} on {lane.node}" if lane.node else lane.lane
        table.add_row(name, *counts, ", ".join(lane.env_types))
    return table


def placement_table(placement: Mapping[str, str]) -> Table:
    """Where environments live and why, a row per tag."""
    table = plain_table("Placement", "tag")
    table.add_column("where, and why", overflow="fold")
    for tag, reason in placement.items():
        table.add_row(tag, reason)
    return table


def tables_of(
    title: str, names: Sequence[str], columns: Mapping[str, Sequence[str]], width: int, named: str = "tag"
) -> list[Table]:
    """Columns of numbers as one table, or, where the console is narrower, as several that have the names in common.

    Args:
        title: Of the first.
        names: The first column.
        columns: A head to its cells, one for each name.
        width: Of the console, in characters.
        named: The head of the first column.
    """
    first = max(map(len, (named, *names)))
    parts: list[list[str]] = [[]]
    left = width - first
    for head, cells in columns.items():
        wide = max(map(len, (head, *cells))) + 2
        if wide > left and parts[-1]:
            parts.append([])
            left = width - first
        parts[-1].append(head)
        left -= wide
    tables = []
    for number, heads in enumerate(parts):
        table = plain_table(title if number == 0 else f"{title}, continued", named, *heads)
        for row, name in enumerate(names):
            table.add_row(name, *(columns[head][row] for head in heads))
        tables.append(table)
    return tables


def plain_table(title: str, first: str, *numbers: str) -> Table:
    """A table whose numbers are never cut; names in its first column are folded where the terminal is narrow."""
    from rich.table import Table

    table = Table(title=f"\n{title}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.min_width = len(title)  # a title is folded to the width of its columns
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    return table
