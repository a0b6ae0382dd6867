"""``report.html``: a run's report for a browser, in one file that loads no external resources.

The command writes one with ``report: true`` (or ``output.report: true``). A trainer calls::

    from ragen.llm_agent.config import wants_report
    from ragen.llm_agent.report import report_of, write_report

    proxy.record_lanes = wants_report(config)     # before the rollouts
    ...
    write_report(report_of(proxy, "train", history=metrics_of_each_step), folder / "report.html")

``report: live`` serves the same page while a rollout goes on; see :mod:`ragen.llm_agent.report.live`.

The output of models and environments is shown as text: escaped, limited in length, with invisible characters made
visible. The page's content security policy allows its own script and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragen.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.report.contents import About, Episode, Report, report_of
    from ragen.llm_agent.report.live import LiveReport
    from ragen.llm_agent.report.page import render, write_report

__all__ = ["About", "Episode", "LiveReport", "Report", "render", "report_of", "write_report"]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("About", "Episode", "Report", "report_of"), "contents"),
        "LiveReport": "live",
        **dict.fromkeys(("render", "write_report"), "page"),
    },
)
