"""Where metrics go: always to ``metrics.jsonl``, and to TensorBoard or Weights & Biases when asked."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ragen.errors import ConfigError, install_command
from ragen.files import write_whole
from ragen.llm_agent.config.loading import one_line
from ragen.training.checkpoints import PHASES, Place

LOGGERS = {"console": "", "tensorboard": "tensorboard", "wandb": "wandb"}
"""Names of ``trainer.logger``, and the package that each of them needs."""

METRICS_FILE = "metrics.jsonl"


class Writer(Protocol):
    """Something that metrics are written to."""

    def write(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step's metrics."""

    def close(self) -> None:
        """Write what is still to be written."""


class JsonLines:
    """One JSON object a line, with ``phase`` and ``step``; every line is on disk when ``write`` returns."""

    def __init__(self, path: Path, resume: Place | None = None) -> None:
        """Begin the file anew, or go on behind the lines up to a step.

        Args:
            path: The file.
            resume: Phase and step to go on from, as :func:`~ragen.training.checkpoints.place_of` gives them; what an
                interrupted run wrote after that is dropped, since it will be written again.
        """
        kept = [] if resume is None else [line for line in read_metrics(path) if _place(line) <= resume]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """See :meth:`Writer.write`."""
        self._file.write(json.dumps({"phase": phase, "step": step, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """See :meth:`Writer.close`."""
        self._file.close()


class TensorBoard:
    """TensorBoard's event files."""

    def __init__(self, folder: Path) -> None:
        """Write into a folder."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(folder))

    def write(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """See :meth:`Writer.write`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See :meth:`Writer.close`."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases; ``WANDB_MODE=offline`` keeps it on this machine."""

    def __init__(self, folder: Path, project: str, name: str) -> None:
        """Begin a run.

        Raises:
            ConfigError: Nobody is logged in, or the service does not answer.
        """
        import wandb

        try:
            self._run = wandb.init(project=project, name=name, dir=str(folder))
        except wandb.Error as error:
            raise ConfigError(
                f"configuration key 'trainer.logger' has 'wandb', which cannot begin a run: {one_line(error)} "
                "WANDB_MODE=offline keeps it on this machine, and trainer.logger=[console] does without."
            ) from error

    def write(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """See :meth:`Writer.write`."""
        self._run.log({f"{phase}/step": step, **metrics})

    def close(self) -> None:
        """See :meth:`Writer.close`."""
        self._run.finish()


class Tracker:
    """Writes every step's metrics to all places at once."""

    def __init__(
        self, folder: Path, loggers: Sequence[str] = (), project: str = "ragen", resume: Place | None = None
    ) -> None:
        """Open all places.

        Args:
            folder: The run's folder.
            loggers: Names of ``LOGGERS``.
            project: The project's name at Weights & Biases; the run's is the folder's.
            resume: See :class:`JsonLines`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._writers: list[Writer] = [JsonLines(folder / METRICS_FILE, resume)]
        if "tensorboard" in loggers:
            self._writers.append(TensorBoard(folder / "tensorboard"))
        if "wandb" in loggers:
            self._writers.append(WandB(folder, project, folder.name))

    def write(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step's metrics."""
        for writer in self._writers:
            writer.write(phase, step, metrics)

    def close(self) -> None:
        """Write what is still to be written."""
        for writer in self._writers:
            writer.close()


def check_loggers(loggers: Sequence[str]) -> None:
    """See that the packages of all loggers are there.

    Raises:
        ConfigError: One is missing.
    """
    for name in loggers:
        package = LOGGERS[name]
        if package and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"configuration key 'trainer.logger' has {name!r}, whose package is not installed: "
                f"{install_command('train')}."
            )


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


def _place(line: Mapping[str, Any]) -> Place:
    return PHASES.index(line["phase"]), int(line["step"])
