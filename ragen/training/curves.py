"""``metrics.jsonl``: every step's metrics, and the learning curve plotted from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

from ragen.extras import needs
from ragen.files import json_text, write_whole

METRICS_FILE = "metrics.jsonl"
WARM_UP, TRAIN = PHASES = ("warm_up", "train")


class MetricsFile:
    """One JSON object a line, with ``phase`` and ``step``, on disk at once."""

    def __init__(self, path: Path, resume: tuple[int, int] | None = None) -> None:
        """Start a new file, or continue an old one after a step.

        Args:
            path: The file.
            resume: The phase's index and the step to resume from; lines after that, of an interrupted run, are dropped,
                since they will be written again.
        """
        kept = [] if resume is None else read_metrics(path)
        kept = [line for line in kept if (PHASES.index(line["phase"]), line["step"]) <= (resume or ())]
        write_whole(path, "".join(json_text(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, float], step: int, phase: str = TRAIN) -> None:
        """Append a line."""
        self._file.write(json_text({"phase": phase, "step": step, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without an incomplete last one; empty if the file does not exist."""
    lines = []
    for text in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        lines.append({name: nan if value is None else value for name, value in line.items()})
    return lines


@needs("train", "a picture of how it went")
def draw_curve(metrics: Path, picture: Path, title: str = "") -> bool:
    """Plot success, reward and entropy over training steps.

    Args:
        metrics: A ``metrics.jsonl``.
        picture: The PNG to write.
        title: The plot's title.

    Returns:
        Whether it was drawn; False without data.
    """
    lines = [line for line in read_metrics(metrics) if line["phase"] == TRAIN]
    names = sorted({name for line in lines for name in line})
    rates = [name for name in names if name.startswith("val/") and name.endswith("/success")]
    if not rates:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    figure.suptitle(title)
    panels = {"success": ["val/success", *rates, "train/success"], "reward": ["train/reward"]}
    panels["entropy of a token, nats"] = ["actor/entropy"]
    for axes, (label, shown) in zip(figure.subplots(1, 3, width_ratios=[3, 2, 2]), panels.items(), strict=True):
        for name in shown:
            points = [(line["step"], line[name]) for line in lines if name in line]
            axes.plot([step for step, _ in points], [value for _, value in points], marker=".", label=name)
        axes.set(xlabel="step", ylabel=label)
        axes.legend(fontsize=8)
    figure.savefig(picture, dpi=120)
    return True
