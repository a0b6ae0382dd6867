"""The picture of how a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ragen.extras import needs
from ragen.files import replacing


@needs("meta", "a picture of how it went")
def draw_curve(path: Path, history: Sequence[Mapping[str, float]], bars: Mapping[str, float], measure: str) -> Path:
    """Draw a learning curve over environment steps, with what others get as lines across.

    Args:
        path: Where to.
        history: Metrics of each iteration: ``env_steps``, ``train``, and ``eval`` of some.
        bars: What others get, by name.
        measure: The name of what is measured.

    Returns:
        ``path``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([each["env_steps"] for each in history], [each["train"] for each in history], alpha=0.4, label="training")
    measured = [each for each in history if "eval" in each]
    axes.plot([each["env_steps"] for each in measured], [each["eval"] for each in measured], "o-", label="evaluation")
    for index, (name, value) in enumerate(bars.items()):
        axes.axhline(value, color=f"C{index + 2}", linestyle="--", label=f"{name}: {value:.1f}")
    axes.set_xlabel("environment steps")
    axes.set_ylabel(measure)
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return path
