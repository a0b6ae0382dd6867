"""The report of an environment's check: findings, advice, and their display."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ragen.errors import without_values
from ragen.files import json_text
from ragen.output import Trimmed
from ragen.parallel.stats import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Literal["ok", "note", "warn", "fail", "main", "skip"]
Advice = Literal["parallel", "sequential", "fix"]

CHEAP = 2e-5  # seconds per turn, including resets, below which a worker's messages cost more
MIDDLING = 1e-3  # up to here the gain depends on the number of environments, which `auto` measures
WAITING = 0.3  # fraction of computing below which an environment counts as waiting

_MARKS = {
    "ok": "[green]ok",
    "note": "[cyan]note",
    "warn": "[yellow]warn",
    "fail": "[red]FAIL",
    "main": "[yellow]warn",
    "skip": "[dim]skipped",
}


_OPENENV = {"ok": "pass", "note": "pass", "warn": "pass", "fail": "fail", "main": "pass", "skip": "skip"}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        status: ``"ok"``; ``"note"``, worth knowing; ``"warn"``, a potential problem; ``"fail"``, must be fixed;
            ``"main"``, it works, but only in the main process; ``"skip"``, not checked.
        text: The finding.
        fix: How the author can fix it.
        story: A traceback, or the stacks of a hung process.
        seconds: Duration of the check, if measured.
        cause: What the environment raised, or how its process ended, if that is the finding.
    """

    status: Status
    text: str
    fix: str = ""
    story: str = ""
    seconds: float = 0.0
    cause: str = ""


@dataclass(frozen=True)
class EnvCosts:
    """The costs of an environment; the turn is 0 if it was not measured.

    Attributes:
        build: Seconds: the median of several lifetimes.
        reset, turn: Mean seconds, as in :class:`~ragen.parallel.stats.MeanCosts`.
        load: Seconds in which a member of a group loads what the first one saved after its reset; 0 if it is reset.
        busy: The fraction of resets and turns in which it or a child process computes rather than waits. Time queued
            for a processor of a busy machine counts as neither.
        turns: Turns that shared a reset: the mean length of the episodes that were played.
    """

    build: float = 0.0
    reset: float = 0.0
    turn: float = 0.0
    busy: float = 1.0
    load: float = 0.0
    turns: float = 1.0


@dataclass(frozen=True)
class CheckReport:
    """The report of all checks.

    Attributes:
        env_type: The checked type.
        findings: The findings by check, in order.
        costs: The measured costs.
        advice: ``"parallel"``, ``"sequential"`` or ``"fix"`` (something must be fixed first).
        line: The line for the configuration, or what to fix first.
        reason: The reason; all failures with their fixes if something must be fixed.
    """

    env_type: str
    findings: Mapping[str, Finding]
    costs: EnvCosts
    advice: Advice
    line: str
    reason: str

    @property
    def ok(self) -> bool:
        """Whether nothing must be fixed."""
        return self.advice != "fix"

    def as_json(self) -> str:
        """The findings in the format of OpenEnv's validation reports, with ``verdict`` and ``target``.

        Our names, which have no dot, are prefixed with ``check.``. A warning is a ``pass`` with a remediation, and
        makes the verdict ``warn``, as does a skipped check.
        """
        results: list[dict[str, Any]] = [
            {
                "check_id": name if "." in name else f"check.{name.replace(' ', '_')}",
                "status": _OPENENV[found.status],
                "measured": {},
                "evidence": [found.text],
                "remediation": found.fix or None,
                "duration_s": round(found.seconds, 3),
            }
            for name, found in self.findings.items()
        ]
        passes = all(found.status in ("ok", "note") for found in self.findings.values())
        verdict = "fail" if any(each["status"] == "fail" for each in results) else "pass" if passes else "warn"
        whole = {"target": self.env_type, "verdict": verdict, "results": results, "advice": self.line}
        return json_text(whole, indent=2)

    def stories(self) -> str:
        """Tracebacks and stacks of failed checks, once for each cause."""
        found, again = self.findings.items(), _found_before(self.findings)
        told = (f"{check}: {each.text}\n{each.story}" for check, each in found if each.story and check not in again)
        return "\n".join(told)

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        """The findings, the costs, and the line for the configuration, as a ``rich`` console prints them."""
        from rich.markup import escape
        from rich.table import Table

        findings = Table("check", "result", "found", title=escape(self.env_type), title_justify="left")
        again = _found_before(self.findings)
        for check, found in self.findings.items():
            fix = f"\n[italic]{escape(found.fix)}[/italic]" if found.fix else ""
            text = escape(found.text) + fix
            if found.status == "fail":
                text = f"the same failure as in {again[check]!r}" if check in again else "see below"
            findings.add_row(check, _MARKS[found.status], text)
        yield Trimmed(findings)
        if self.costs.turn:
            seconds = {"build": self.costs.build, "reset": self.costs.reset, "turn": self.costs.turn}
            if self.costs.load:
                seconds["reset, loaded"] = self.costs.load
            costs = Table(*seconds, "computing", title="Costs", title_justify="left")
            costs.add_row(*map(duration, seconds.values()), f"{self.costs.busy:.0%}")
            yield Trimmed(costs)
        reason = escape(self.reason)
        if self.ok:
            line = escape(self.line)
            yield f"{reason} In the configuration:\n[bold]es_manager:\n  {line}[/bold]".lstrip()
        else:
            yield f"[bold]fix this first:[/bold] {reason}"


def advise(
    env_type: str,
    findings: Mapping[str, Finding],
    costs: EnvCosts,
    is_exercised: bool = True,
    hint: str | None = None,
    slow: str = "",
) -> CheckReport:
    """Derive the advice from findings and costs.

    ``hint`` is the ``cost_hint`` that the class declares; ``slow`` names a turn that took far longer than others.

    ``is_exercised`` is false if generic texts alone were played, none of which was said to be a valid action.
    """

    def report(advice: Advice, line: str, reason: str) -> CheckReport:
        return CheckReport(env_type, findings, costs, advice, line, reason)

    sequential = f"sequential_env_types: [{json.dumps(env_type)}]"
    if failed := to_fix(findings):
        return report("fix", *failed)
    for found in findings.values():
        if found.status == "main":
            return report("sequential", sequential, f"It must stay in the main process: {found.text}.")
    if slow:
        reason = f"Look at one turn first, since it decides the costs above: {slow}."
        return report("parallel", "use_multiprocessing: auto", reason)
    share = costs.turn + costs.reset / costs.turns
    least = costs.turn + (costs.load or costs.reset) / costs.turns
    resets = f"its share of a reset every {costs.turns:.3g} turns" if costs.turns > 1 else "a reset"
    cost = f"a turn takes about {duration(share)}, including {resets}"
    if costs.load:
        cost += f", and {duration(least)} in the members of a group that load the first one's reset"
    if share < CHEAP and not is_exercised:
        reason = (
            f"{cost[0].upper()}{cost[1:]}, but with generic texts, which may not be valid actions: define "
            "example_action, or name some with --actions, and check again."
        )
        return report("parallel", "use_multiprocessing: auto", reason)
    if share < CHEAP:
        reason = f"Workers do not pay: {cost}, less than the messages to a worker; auto detects this too."
        return report("sequential", sequential, reason)
    if costs.busy < WAITING:
        reason = (
            f"Workers pay, even more of them than processors: it waits for {1 - costs.busy:.0%} of the time. With "
            f"max_workers: null, auto starts as many as such environments can use{_told_by('io', hint)}."
        )
        return report("parallel", "use_multiprocessing: auto", reason)
    if least < MIDDLING:
        of_groups = " and how large their groups are" if costs.load else ""
        reason = f"whether workers pay depends on how many environments there are{of_groups}, which auto measures."
        return report("parallel", "use_multiprocessing: auto", f"{cost.capitalize()}: {reason}")
    reason = f"Workers pay: {cost}. auto measures that in the first episode{_told_by('heavy', hint)}."
    return report("parallel", "use_multiprocessing: auto", reason)


def _told_by(fitting: str, hint: str | None) -> str:
    """What a class can declare so that ``auto`` need not measure, to follow a sentence; "" if it has."""
    return "" if hint == fitting else f"; with cost_hint = {fitting!r} in the class, workers play from the beginning"


def to_fix(findings: Mapping[str, Finding]) -> tuple[str, str] | None:
    """What must be fixed first, and all failures with their fixes; None if there are none."""
    failed = {check: found for check, found in findings.items() if found.status == "fail"}
    if not failed:
        return None
    first, again = next(iter(failed)), _found_before(failed)
    todo = [
        f"{check}: {found.text}" + (f"\n  {found.fix}" if found.fix else "")
        for check, found in failed.items()
        if check not in again
    ]
    for check in dict.fromkeys(again.values()):
        others = ", ".join(other for other, same in again.items() if same == check)
        todo.append(f"{others}: the same failure as in {check!r}")
    return f"fix this first: {first}: {failed[first].text}", "\n".join(todo)


def _found_before(findings: Mapping[str, Finding]) -> dict[str, str]:
    """Checks that found a cause again, and the first that found it."""
    causes = {check: without_values(found.cause) for check, found in findings.items() if found.cause}
    first = {cause: check for check, cause in reversed(causes.items())}
    return {check: first[cause] for check, cause in causes.items() if first[cause] != check}
