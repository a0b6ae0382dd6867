"""``metrics.jsonl``: every step's metrics, and the learning curve plotted from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from ragen.extras import needs
from ragen.files import json_text, write_whole
from ragen.statistics import ALL
from ragen.tracking import Logger

WARM_UP, TRAIN = PHASES = ("warm_up", "train")


class MetricsFile(Logger):
    """One JSON object a line, with ``phase`` and ``step``, on disk at once."""

    def __init__(self, path: Path, resume: tuple[int, int] | None = None) -> None:
        """Start a new file, or continue an old one after a step.

        Args:
            path: The file.
            resume: The phase's index and the step to resume from; what an
                interrupted run wrote after that is dropped, since it will be written again.
        """
        kept = [] if resume is None else [line for line in read_metrics(path) if place_of_line(line) <= resume]
        write_whole(path, "".join(json_text(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """Append a line."""
        self._file.write(json_text({"phase": phase, "step": step, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without an incomplete last one; empty if the file does not exist."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text("utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        lines.append({name: nan if value is None else value for name, value in line.items()})
    return lines


def place_of_line(line: Mapping[str, Any]) -> tuple[int, int]:
    """Phase and step of a line, in the order of training."""
    return PHASES.index(line["phase"]), int(line["step"])


# The plot


Points = tuple[list[int], list[float]]


def points(lines: Sequence[dict[str, Any]], name: str) -> Points:
    """The steps of training at which a metric is known, and its values."""
    known = [line for line in lines if line["phase"] == "train" and name in line]
    return [line["step"] for line in known], [line[name] for line in known]


def curve_names(lines: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """The names of success rates: of all tags together first, then by tag."""
    is_rate = re.compile(rf"{prefix}([^/]+/)?success").fullmatch
    names = {name for line in lines for name in line if is_rate(name)}
    return sorted(names, key=lambda name: (name != f"{prefix}success", name))


@needs("train", "a picture of how it went")
def draw_curve(metrics: Path, picture: Path, title: str = "") -> bool:
    """Plot success over training steps, and reward and entropy beside it.

    Args:
        metrics: A ``metrics.jsonl``.
        picture: The PNG to write.
        title: The plot's title.

    Returns:
        Whether it was drawn; False without data.
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
        label = name.removeprefix("val/").removesuffix("/success").removesuffix("success") or ALL
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
