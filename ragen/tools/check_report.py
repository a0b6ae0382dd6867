"""What a check of an environment found, what follows from it, and the tables that show it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Literal["ok", "note", "warn", "fail", "skip"]
Advice = Literal["parallel", "sequential", "fix"]

CHEAP = 20e-6  # seconds of an environment's turn, resets included, below which a worker's messages cost more
MIDDLING = 10 * CHEAP  # up to here it depends on how many environments there are, which `auto` measures
WAITING = 0.3  # share of computing below which an environment is taken to wait for something

_MARKS = {"ok": "[green]ok", "note": "[cyan]note", "warn": "[yellow]warn", "fail": "[red]FAIL", "skip": "[dim]skipped"}
_UNITS = {
    "s": ((1e-6, "us"), (1e-3, "ms"), (1.0, "s")),
    "B": ((1, "B"), (1024, "kB"), (1024**2, "MB"), (1024**3, "GB")),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What was looked at.
        status: ``"ok"``; ``"note"``, worth knowing; ``"warn"``, may do harm; ``"fail"``, has to be fixed (or, where
            it says so, to stay in the main process); ``"skip"``, could not be looked at.
        text: What was found.
        fix: What the author can do about it.
        story: A traceback, or the stacks of a process that hung.
    """

    check: str
    status: Status
    text: str
    fix: str = ""
    story: str = ""


@dataclass(frozen=True)
class EnvCosts:
    """What an environment costs; None for what could not be measured.

    Attributes:
        build, reset, turn: Seconds, medians.
        busy: The share of a turn in which it computes; the rest it waits.
        config: Bytes of the message that brings it to a worker.
        request, reply: Bytes of one turn's part of the messages to and from a worker.
    """

    build: float | None = None
    reset: float | None = None
    turn: float | None = None
    busy: float | None = None
    config: int | None = None
    request: int | None = None
    reply: int | None = None


@dataclass(frozen=True)
class CheckReport:
    """The whole result.

    Attributes:
        env_type: What was checked.
        findings: In the order in which they were looked for.
        costs: What it costs.
        advice: ``"parallel"``, ``"sequential"`` or ``"fix"`` (something has to be fixed first).
        line: What to put into the configuration, or what to fix first.
        reason: Why.
    """

    env_type: str
    findings: tuple[Finding, ...]
    costs: EnvCosts
    advice: Advice
    line: str
    reason: str

    @property
    def ok(self) -> bool:
        """Whether nothing has to be fixed."""
        return self.advice != "fix"

    def finding(self, check: str) -> Finding:
        """What a check found.

        Raises:
            KeyError: There was no such check.
        """
        by_name = {finding.check: finding for finding in self.findings}
        if check not in by_name:
            raise KeyError(f"{check!r} is none of the checks {', '.join(by_name)}")
        return by_name[check]

    def stories(self) -> str:
        """Tracebacks and stacks of what failed."""
        return "\n".join(f"{each.check}: {each.text}\n{each.story}" for each in self.findings if each.story)

    def tables(self) -> list[RenderableType]:
        """The findings, the costs, and the line for the configuration, for a ``rich`` console."""
        from rich.markup import escape
        from rich.table import Table

        findings = Table("check", "result", "found", title=escape(self.env_type), title_justify="left")
        for each in self.findings:
            fix = f"\n[italic]{escape(each.fix)}[/italic]" if each.fix else ""
            findings.add_row(each.check, _MARKS[each.status], escape(each.text) + fix)
        costs, seconds, sizes = self.costs, ("build", "reset", "turn"), ("config", "request", "reply")
        columns = {name: in_units(getattr(costs, name), "s") for name in seconds}
        columns["computing"] = "?" if costs.busy is None else f"{costs.busy:.0%}"
        columns |= {name: in_units(getattr(costs, name), "B") for name in sizes}
        table = Table(*columns, title="Costs", title_justify="left")
        table.add_row(*columns.values())
        return [findings, table, f"[bold]{escape(self.line)}[/bold]\n{escape(self.reason)}".rstrip()]

    def print(self, with_stories: bool) -> None:
        """Print the tables; tracebacks and stacks as well if they are wanted."""
        from rich.console import Console

        console = Console()
        for part in self.tables():
            console.print(part)
        if with_stories and (stories := self.stories()):
            console.print(stories, markup=False, highlight=False)


def advise(
    env_type: str, findings: tuple[Finding, ...], costs: EnvCosts, turns: int, bound_to_main: str = ""
) -> CheckReport:
    """What follows from the findings and the costs, a reset's being shared out among the ``turns`` of an episode.

    ``bound_to_main``: why the environment has to stay in the main process, if it has.
    """

    def report(advice: Advice, line: str, reason: str) -> CheckReport:
        return CheckReport(env_type, findings, costs, advice, line, reason)

    sequential = f"sequential_env_types: [{json.dumps(env_type)}]"
    if bound_to_main:
        return report("sequential", sequential, f"It has to stay in the main process: {bound_to_main}.")
    if failed := [finding for finding in findings if finding.status == "fail"]:
        todo = "\n".join(f"{each.check}: {each.fix or each.text}" for each in failed if each.fix or each != failed[0])
        return report("fix", f"fix this first: {failed[0].check}: {failed[0].text}", todo)
    share = (costs.turn or 0.0) + (costs.reset or 0.0) / turns
    told = f"a turn takes about {in_units(share, 's')}, with its share of the resets"
    if share < CHEAP:
        reason = f"It would gain nothing: {told}, less than the messages to a worker; auto finds that too."
        return report("sequential", sequential, reason)
    if costs.busy is not None and costs.busy < WAITING:
        reason = f"It waits for {1 - costs.busy:.0%} of a turn: max_workers above the number of cores pays."
        return report("parallel", "use_multiprocessing: true", reason)
    if share < MIDDLING:
        reason = (
            f"{told.capitalize()}: whether workers pay depends on how many environments there are, which auto measures."
        )
        return report("parallel", "use_multiprocessing: auto", reason)
    return report("parallel", "use_multiprocessing: true", f"{told.capitalize()}.")


def in_units(value: float | None, unit: Literal["s", "B"]) -> str:
    """Seconds or bytes in the largest fitting unit; ``"?"`` for None."""
    if value is None:
        return "?"
    size, name = next((each for each in _UNITS[unit] if value < 1000 * each[0]), _UNITS[unit][-1])
    return f"{value / size:.3g} {name}"
