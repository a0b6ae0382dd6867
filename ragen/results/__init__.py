"""Results of a run, from its rows: figures with intervals, comparisons of runs, and a page for a browser.

``rows`` reads the files that a run leaves; ``figures`` computes the figures of each tag, once, for all that show them:
``tables`` (a terminal), ``compare`` and ``page``. ``collapse`` measures whether thoughts depend on prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.results.collapse import collapse_metrics
    from ragen.results.figures import evaluate
    from ragen.results.rows import REPLIES, read_rows

__all__ = [
    "REPLIES",
    "collapse_metrics",
    "evaluate",
    "read_rows",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "collapse_metrics": "collapse",
        **dict.fromkeys(("REPLIES", "read_rows"), "rows"),
        "evaluate": "figures",
    },
)
