"""What a rollout shows in browsers: ``report.html`` in the end, and with ``report=live`` the same page meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.errors import shown_path
from ragen.llm_agent.config.report import wants_live
from ragen.llm_agent.rollout.progress import Progress
from ragen.settings import setting

if TYPE_CHECKING:
    from ragen.llm_agent.evaluation.scanners import Scan
    from ragen.llm_agent.report.live import LiveReport
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy
    from ragen.llm_agent.rollout.rollout_file import RolloutFile


def write_report_of(
    proxy: LLMAgentProxy, mode: str, file: RolloutFile, usage: dict[str, float], scanned: Scan, unfinished: str
) -> None:
    """Write ``report.html`` beside the trajectories, those of earlier runs included.

    Where this run had nothing left to play, a page that is there stays: it has the times of the run that played.

    Args:
        proxy: After its rollout.
        mode: Which of its managers played.
        file: The run's file.
        usage: The counts of all runs of the file.
        scanned: What scanners found in its trajectories.
        unfinished: Says that the run lacks replies; otherwise empty.

    Raises:
        ConfigError: It cannot be written.
    """
    from ragen.llm_agent.report import About, report_of, write_report
    from ragen.llm_agent.report.contents import episode_of
    from ragen.llm_agent.rollout.rollout_file import read_records

    path = file.path.with_name("report.html")
    if not proxy.rollout_states and path.exists():
        print(f"report in {shown_path(path)}, unchanged")
        return
    report = report_of(proxy, mode, earlier=file.kept.values())
    if not setting(proxy.config, "raw", bool, True):  # the page has no more texts than the rows
        report = replace(report, episodes=[episode_of(record) for record in read_records(file.path)])
    about = About.of_folder(file.path, [episode.seed for episode in report.episodes])
    write_report(replace(report, about=about, usage=usage, scanned=scanned, unfinished=unfinished), path)
    print(f"report in {shown_path(path)}")


class Live:
    """Passes the progress of a rollout to the live report, if one is served."""

    def __init__(self, proxy: LLMAgentProxy, mode: str, served: LiveReport | None = None) -> None:
        """Set the proxy, its mode, and the live report."""
        self._proxy, self._mode, self._served = proxy, mode, served

    def over(self, states: Sequence[dict[str, Any]]) -> None:
        """Add finished episodes."""
        if self._served is not None:
            from ragen.llm_agent.report.contents import episode_of_state

            self._served.add([episode_of_state(self._proxy, self._mode, state) for state in states])
        self.beat()

    def beat(self) -> None:
        """Update the statistics of workers."""
        if self._served is not None:
            self._served.beat(self._proxy.prepare(val=self._mode == "val")[0].lane_stats)


@contextmanager
def live_report(proxy: LLMAgentProxy, mode: str, file: RolloutFile, progress: Progress) -> Iterator[Live]:
    """Serve the report within a block, if configured.

    Args:
        proxy: Plays the rollout.
        mode: Which of its managers plays.
        file: The run's file.
        progress: The progress of the rollout.

    Raises:
        ConfigError: It cannot be served.
    """
    if not wants_live(proxy.config):
        yield Live(proxy, mode)
        return
    from ragen.llm_agent.report import About, Report
    from ragen.llm_agent.report.contents import episode_of
    from ragen.llm_agent.report.live import LiveReport

    earlier = [episode_of(record) for record in file.kept.values()]
    title = About.of_config(proxy.config, mode).title or "a model"
    report = Report(f"{title}, pending", episodes=earlier, about=About.of_folder(file.path))
    with LiveReport(report, progress.words, progress.replies) as served:
        print(f"live report: {served.address}", file=sys.stderr)
        yield Live(proxy, mode, served)
