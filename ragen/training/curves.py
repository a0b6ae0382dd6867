"""The learning curve as a picture, drawn from ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen.extras import needs
from ragen.training.metrics_file import read_metrics

Points = tuple[list[int], list[float]]


def points(lines: Sequence[dict[str, Any]], name: str) -> Points:
    """The steps of training at which a metric is known, and its values."""
    known = [line for line in lines if line["phase"] == "train" and name in line]
    return [line["step"] for line in known], [line[name] for line in known]


def curve_names(lines: Sequence[dict[str, Any]], prefix: str) -> list[str]:
    """The success rates there are: of all tags together first, then tag by tag."""
    names = {name for line in lines for name in line if name.startswith(prefix) and name.endswith("/success")}
    return sorted(names, key=lambda name: (name != f"{prefix}success", name))


@needs("train", "a picture of how it went")
def draw_curve(metrics: Path, picture: Path, title: str = "") -> bool:
    """Draw success over steps of training, and reward and entropy beside it.

    Args:
        metrics: A ``metrics.jsonl``.
        picture: The PNG to write.
        title: What to write above.

    Returns:
        Whether it was drawn: not before there is anything to show.
    """
    lines = read_metrics(metrics)
    names = curve_names(lines, "val/")
    if not names:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    success, reward = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_success(success, lines, names)
    _draw_reward(reward, lines)
    figure.suptitle(title)
    figure.savefig(picture, dpi=120)
    return True


def _draw_success(axes: Any, lines: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        steps, rates = points(lines, name)
        label = name.removeprefix("val/").removesuffix("/success").removesuffix("success") or "all"
        axes.plot(steps, rates, marker="o", markersize=3, linewidth=2.4 if place == 0 else 1.2, label=label)
    steps, rates = points(lines, "train/success")
    axes.plot(steps, rates, color="0.75", linewidth=0.8, zorder=0, label="all, in training")
    axes.set(xlabel="step", ylabel="success", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_reward(axes: Any, lines: Sequence[dict[str, Any]]) -> None:
    axes.plot(*points(lines, "train/reward"), color="tab:green", linewidth=1.2)
    axes.set(xlabel="step", ylabel="reward in training")
    axes.yaxis.label.set_color("tab:green")
    axes.grid(alpha=0.3)
    other = axes.twinx()
    other.plot(*points(lines, "actor/entropy"), color="tab:purple", linewidth=1.2)
    other.set_ylabel("entropy of a token, nats", color="tab:purple")
