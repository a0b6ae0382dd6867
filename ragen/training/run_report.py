"""The ``report.html`` of a training run: success over time, where the time went, and current trajectories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragen.llm_agent import LLMAgentProxy
from ragen.llm_agent.evaluation import CollapseDetector
from ragen.llm_agent.report import LiveReport, Report, report_of, write_report
from ragen.llm_agent.rollout import Timeline
from ragen.tracking import METRICS_FILE
from ragen.training.curves import TRAIN, read_metrics

REPORT_FILE = "report.html"
_CURVES = ("success", "reward")


class RunReport:
    """Collects the report's content, rollout by rollout; its timeline is that of this process.

    Attributes:
        path: The file to write.
    """

    def __init__(self, proxy: LLMAgentProxy, folder: Path, title: str, facts: Mapping[str, Any]) -> None:
        """Begin recording; from now on the proxy records what each worker does.

        Args:
            proxy: Plays the rollouts.
            folder: The run's folder, with its metrics.
            title: The page's title.
            facts: Facts about the run.
        """
        proxy.record_lanes = True
        self.path = folder / REPORT_FILE
        self._proxy = proxy
        self._metrics = folder / METRICS_FILE
        self._timeline = Timeline(with_lanes=True)
        self._report = Report(title, facts)
        self._live: LiveReport | None = None

    @contextmanager
    def served(self, words: Callable[[], str]) -> Iterator[str]:
        """Serve the last written page within a block.

        Args:
            words: Returns the progress of the training; called from another thread.

        Yields:
            The address of the page.

        Raises:
            ConfigError: It cannot be served.
        """
        with LiveReport(self._report, words) as self._live:
            yield self._live.address

    @contextmanager
    def learning(self) -> Iterator[None]:
        """A block in which the model learns."""
        with self._timeline.span("trainer", "learning"):
            yield

    def add_rollout(self, val: bool) -> None:
        """Add a finished rollout; the trajectories of the last validation are shown."""
        for span in self._proxy.timeline.spans:
            self._timeline.add(span)
        self._timeline.marks += self._proxy.timeline.marks
        if val:
            self._report = replace(self._report, episodes=report_of(self._proxy, "val").episodes)

    def write(self) -> None:
        """Write the page of the run so far; an older one is kept if this process did nothing."""
        if not self._timeline.spans:
            return
        kinds = dict.fromkeys(span.kind for span in self._timeline.spans)
        lanes = [
            replace(stats, lane=f"{stats.lane} ({name})")
            for name, manager in (
                ("training", self._proxy.train_es_manager),
                ("validation", self._proxy.val_es_manager),
            )
            for stats in manager.lane_stats()
        ]
        report = replace(
            self._report,
            timeline=self._timeline,
            seconds=self._timeline.seconds(kinds),
            lanes=lanes,
            history=history(read_metrics(self._metrics)),
            notes=[] if self._report.episodes else ["It was stopped before the first validation."],
        )
        write_report(report, self.path)
        if self._live is not None:
            self._live.show(report)


def history(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The lines of a metrics file as :class:`~ragen.llm_agent.report.Report` wants its history.

    Args:
        lines: The result of ``read_metrics``.

    Returns:
        For each training step its number, validation metrics, success and reward in training under the tag ``in
        training``, and metrics of thoughts.
    """
    return [_step(line) for line in lines if line["phase"] == TRAIN]


def _step(line: Mapping[str, Any]) -> dict[str, float]:
    validated = {name.removeprefix("val/"): value for name, value in line.items() if name.startswith("val/")}
    trained = {f"in training/{name}": line[f"train/{name}"] for name in _CURVES if f"train/{name}" in line}
    return {"step": line["step"], **validated, **trained, **CollapseDetector.curves(line)}
