"""Experiment trackers behind one interface: TensorBoard, Weights & Biases, trackio and MLflow.

::

    with open_loggers(["tensorboard", "wandb"], folder, project="ragen") as loggers:
        loggers.log({"train/success": 0.5}, step=1)

A run is named after its folder. What a recipe needs itself, such as the metrics that a resumed run goes on from, is in
its own files and not here.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from ragen.closing import Closing
from ragen.errors import ConfigError, install_command

PACKAGES = {"console": "", "tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
"""Names of loggers, and the package that each needs; ``console`` is what commands print anyway."""

_IN_TRAIN = ("tensorboard", "wandb")
_NOT_IN_MLFLOW = re.compile(r"[^\w\-./ ]")


class Logger(Protocol):
    """What metrics are written to."""

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """Write one step's metrics.

        Args:
            metrics: Numbers by name.
            step: The step.
            phase: What the step counts, where a run has several phases that each count from 1.
        """

    def close(self) -> None:
        """Write what is still to be written."""


class TensorBoard:
    """TensorBoard's event files."""

    def __init__(self, folder: Path, project: str) -> None:
        """Write into ``tensorboard/`` of a folder."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"))

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """See :meth:`Logger.log`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See :meth:`Logger.close`."""
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases, or of trackio, which has the same functions.

    ``WANDB_MODE=offline`` keeps the former on this machine; trackio does so by default.
    """

    def __init__(self, package: str, project: str, name: str, **options: Any) -> None:
        """Begin a run.

        Raises:
            ConfigError: Nobody is logged in, or the service does not answer.
        """
        try:
            self._run = importlib.import_module(package).init(project=project, name=name, **options)
        except Exception as error:
            raise ConfigError(
                f"the logger {package!r} cannot begin a run: {' '.join(str(error).split())} Take it out of the list of "
                "loggers; with WANDB_MODE=offline, wandb keeps a run on this machine."
            ) from error

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """See :meth:`Logger.log`."""
        self._run.log({f"{phase}/step": step, **metrics})

    def close(self) -> None:
        """See :meth:`Logger.close`."""
        self._run.finish()


class MLflowRun:
    """A run of MLflow, where ``MLFLOW_TRACKING_URI`` says."""

    def __init__(self, folder: Path, project: str) -> None:
        """Begin a run in the experiment of this name."""
        import mlflow

        mlflow.set_experiment(project)
        self._mlflow, self._run = mlflow, mlflow.start_run(run_name=folder.name)

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """See :meth:`Logger.log`; characters that MLflow takes in no name, such as ``@``, become ``_``."""
        named = {_NOT_IN_MLFLOW.sub("_", name): float(value) for name, value in metrics.items()}
        self._mlflow.log_metrics(named, step=step, run_id=self._run.info.run_id)

    def close(self) -> None:
        """See :meth:`Logger.close`."""
        self._mlflow.end_run()


OPENED: dict[str, Callable[[Path, str], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": lambda folder, project: WandbRun("wandb", project, folder.name, dir=str(folder)),
    "trackio": lambda folder, project: WandbRun("trackio", project, folder.name),
    "mlflow": MLflowRun,
}
"""What makes each logger of a run's folder and the project's name."""


class Loggers(Closing):
    """Writes to several loggers at once; a context manager."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        """Write to these."""
        self._loggers = list(loggers)

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """See :meth:`Logger.log`."""
        for logger in self._loggers:
            logger.log(metrics, step, phase)

    def close(self) -> None:
        """Close all of them; may be called twice."""
        with ExitStack() as closing:
            while self._loggers:
                closing.callback(self._loggers.pop().close)


def open_loggers(names: Sequence[str], folder: Path, project: str = "ragen") -> Loggers:
    """Begin a run with each of some trackers.

    Args:
        names: Keys of :data:`PACKAGES`.
        folder: The run's, after which it is named; it is made if it is not there.
        project: What the run belongs to.

    Raises:
        ConfigError: A tracker cannot begin a run; the others were closed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    opened: list[Logger] = []
    try:
        for name in names:
            if name in OPENED:
                opened.append(OPENED[name](folder, project))
    except BaseException:
        Loggers(opened).close()
        raise
    return Loggers(opened)


def check_loggers(names: Sequence[str], key: str) -> None:
    """Check names of loggers, and that their packages are there.

    Args:
        names: What a configuration asks for.
        key: Its key.

    Raises:
        ConfigError: There is no such logger, or its package is not installed.
    """
    for name in names:
        if name not in PACKAGES:
            raise ConfigError(f"configuration key {key!r} has {name!r}; expected some of {', '.join(PACKAGES)}.")
        package = PACKAGES[name]
        if package and importlib.util.find_spec(package) is None:
            install = install_command("train") if name in _IN_TRAIN else f"pip install {package}"
            raise ConfigError(f"configuration key {key!r} has {name!r}, whose package is not installed: {install}.")
