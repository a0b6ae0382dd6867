"""The picture of a search: returns and compliance by order, and how each training went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen.cage2.results import WorkflowResult
from ragen.extras import needs
from ragen.files import replacing

_SHORT = {"defender": "def", "enterprise": "ent", "op_server": "srv", "op_host": "op", "user": "usr"}
_MOST_CURVES = 10  # as many as there are colors to tell apart


@needs("cage2", "a picture of how it went")
def draw_search(path: Path, results: Sequence[WorkflowResult]) -> Path:
    """Draw the results of a search, the best order at the top.

    Args:
        path: Where to; ``.png``.
        results: One at least.

    Returns:
        ``path``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranked = sorted(results, key=lambda each: each.train_reward)
    rows = range(len(ranked))
    labels = [f"{' > '.join(_SHORT[name] for name in each.workflow)}  #{each.iteration}" for each in ranked]
    figure = Figure(figsize=(13, 2.5 + 0.28 * len(ranked)), layout="constrained")
    FigureCanvasAgg(figure)
    returns, rates, curves = figure.subplots(1, 3, width_ratios=(4, 3, 4))
    noises = [1.96 * each.noise for each in ranked]
    returns.errorbar([each.train_reward for each in ranked], rows, xerr=noises, fmt="o", capsize=3)
    returns.set_yticks(rows, labels)
    returns.set_xlabel(f"return of the last episodes, ± 1.96 standard errors\n({ranked[0].simulator} simulator)")
    rates.barh(rows, [each.train_compliance for each in ranked], color="C2", alpha=0.6)
    for row, each in zip(rows, ranked, strict=True):
        rates.text(0.02, row, f"{each.coverage:.0f} fixes", va="center", fontsize=8)
    rates.set_yticks(rows, [""] * len(ranked))
    rates.set_ylim(returns.get_ylim())
    rates.set_xlim(0, 1)
    rates.set_xlabel("compliance of the last episodes")
    for each in ranked[::-1][:_MOST_CURVES]:
        seen = [(entry["episodes"], entry["reward"]) for entry in each.updates if entry["reward"] is not None]
        curves.plot(*zip(*seen, strict=True), label=f"#{each.iteration}")
    curves.set_xlabel("episodes of each environment")
    curves.set_ylabel("return")
    curves.legend(fontsize=7, ncols=2)
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return path
