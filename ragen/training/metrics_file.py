"""``metrics.jsonl``: every step's metrics, from which a run goes on, reports are written and curves are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen.files import write_whole
from ragen.training.checkpoints import PHASES, Place

METRICS_FILE = "metrics.jsonl"


class MetricsFile:
    """A :class:`~ragen.tracking.Logger`: one JSON object a line, with ``phase`` and ``step``, on disk at once."""

    def __init__(self, path: Path, resume: Place | None = None) -> None:
        """Begin the file anew, or go on behind the lines up to a step.

        Args:
            path: The file.
            resume: Phase and step to go on from, as :func:`~ragen.training.checkpoints.place_of` gives them; what an
                interrupted run wrote after that is dropped, since it will be written again.
        """
        kept = [] if resume is None else [line for line in read_metrics(path) if place_of_line(line) <= resume]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """Append a line."""
        self._file.write(json.dumps({"phase": phase, "step": step, **metrics}) + "\n")
        self._file.flush()

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int, phase: str = "train"
    ) -> None:
        """See :meth:`ragen.tracking.Logger.log_table`; tables are in files of their own."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; none where it is not there, and without a last line that was cut off."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text("utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def place_of_line(line: Mapping[str, Any]) -> Place:
    """Phase and step of a line, in the order of training."""
    return PHASES.index(line["phase"]), int(line["step"])
