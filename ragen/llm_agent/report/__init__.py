"""``report.html``: a run's report for a browser, in one file that loads no external resources.

A rollout writes one with ``report: true`` (or ``output.report: true``). ``ragen report RUN`` writes one from the files
of a run, finished or not.

The output of models and environments is shown as text: escaped, limited in length, with invisible characters made
visible. The page's content security policy allows its own script and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.report.contents import About, Episode, Report, report_of
    from ragen.llm_agent.report.page import render, write_report

__all__ = ["About", "Episode", "Report", "render", "report_of", "write_report"]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("About", "Episode", "Report", "report_of"), "contents"),
        **dict.fromkeys(("render", "write_report"), "page"),
    },
)
