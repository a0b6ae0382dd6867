"""The terminal output of a run: a progress bar on standard error, and a line per validation on standard output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from ragen.commands import LogLines, StopRequest
from ragen.training.curves import curve_names

_SHOWN = {
    "warm_up/loss": "loss {:.3f}",
    "train/success": "success {:.0%}",
    "train/reward": "reward {:+.3f}",
    "actor/entropy": "entropy {:.2f}",
}
_BAR = 10
_OTHERS = (
    8 + 1 + _BAR + 3 * (1 + 7) + 1
)  # characters: the description, the bar, the count, both times, and the spaces between


class _News(ProgressColumn):
    """The last step's metrics, or a notice that the run will stop; polled, since signal handlers must not print."""

    def __init__(self, stop: StopRequest, console: Console) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._stop, self._console = stop, console

    def render(self, task: Task) -> Text:
        if self._stop.wanted and not task.finished:
            return Text("stopping after this step")
        parts = list(task.fields["news"])
        while len(parts) > 1 and _OTHERS + len("  ".join(parts)) > self._console.width:
            parts.pop()  # the least important
        return Text("  ".join(parts))


class Display:
    """A progress bar for each phase; a context manager.

    Attributes:
        console: Where lines are printed.
    """

    def __init__(self, stop: StopRequest, quiet: bool = False) -> None:
        """Prepare the bar.

        Args:
            stop: Whether a stop was asked for, so that the bar can show it at once.
            quiet: Show nothing at all.
        """
        lines, bar = (
            Console(stderr=error, markup=False, emoji=False, highlight=False, quiet=quiet) for error in (False, True)
        )
        self.console = bar if lines.is_terminal and bar.is_terminal else lines  # else lines would overwrite the bar
        self._bar = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(_BAR),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            _News(stop, bar),
            console=bar,
            disable=not bar.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._begun: dict[str, tuple[int, int, LogLines]] = {}
        self._quiet = quiet

    def begin(self, phase: str, done: int, total: int) -> None:
        """Begin the bar of a phase."""
        name = phase.replace("_", " ")
        self._tasks[phase] = self._bar.add_task(name, total=total, completed=done, news=())
        self._begun[phase] = done, total, LogLines()

    def advance(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Show that a step is done."""
        news = [text.format(metrics[name]) for name, text in _SHOWN.items() if name in metrics]
        self._bar.update(self._tasks[phase], completed=step, news=news)
        before, total, lines = self._begun[phase]
        if not self._quiet:
            lines.report(", ".join([phase.replace("_", " "), *news]), step, total, before)

    def validated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a validation's success rates."""
        rates = {name.removeprefix("val/"): metrics[name] for name in curve_names([metrics], "val/")}
        overall = rates.pop("success", 0.0)
        details = ", ".join(f"{name.removesuffix('/success')} {rate:.3f}" for name, rate in sorted(rates.items()))
        self.say(f"step {step:4d}: success {overall:.3f} ({details}), reward {metrics['val/reward']:+z.3f}")

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
