"""The page ``report.html`` of a rollout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ragen.errors import shown_path
from ragen.settings import setting

if TYPE_CHECKING:
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy
    from ragen.llm_agent.rollout.rollout_file import RolloutFile


def write_report_of(
    proxy: LLMAgentProxy, mode: str, file: RolloutFile, usage: dict[str, float], unfinished: str
) -> None:
    """Write ``report.html`` beside the trajectories, those of earlier runs included.

    Where this run had nothing left to play, a page that is there stays: it has the times of the run that played.

    Args:
        proxy: After its rollout.
        mode: Which of its managers played.
        file: The run's file.
        usage: The counts of all runs of the file.
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
    write_report(replace(report, about=about, usage=usage, unfinished=unfinished), path)
    print(f"report in {shown_path(path)}")
