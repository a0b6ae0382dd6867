"""Experiment trackers behind one interface: TensorBoard, Weights & Biases, trackio and MLflow.

::

    with open_loggers(["tensorboard", "wandb"], folder, project="ragen") as loggers:
        loggers.log({"train/success": 0.5}, step=1)
        loggers.log_table("val/generations", ["input", "output", "score"], rows, step=1)

A run is named after its folder. Data that a recipe needs itself, such as the metrics from which a run resumes, is
stored in its own files. Tables go to every tracker that supports them, and to :class:`TableFiles`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from ragen.closing import Closing
from ragen.errors import ConfigError, install_command
from ragen.files import write_whole

METRICS_FILE = "metrics.jsonl"
"""The file of a training's metrics, with one line per step."""
PACKAGES = {"console": "", "tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
"""Names of loggers, and the package that each needs; ``console`` stands for the commands' own output."""

_IN_TRAIN = ("tensorboard", "wandb")
_NOT_IN_MLFLOW = re.compile(r"[^\w\-./ ]")


class Logger(Protocol):
    """A destination of metrics. Derive from it; a logger without tables ignores them."""

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """Write one step's metrics.

        Args:
            metrics: Numbers by name.
            step: The step.
            phase: The phase of the step, if a run has several phases whose steps each start at 1.
        """
        return None

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int, phase: str = "train"
    ) -> None:
        """Write a table of one step.

        Args:
            name: The table's name.
            columns: The names of its columns.
            rows: Rows with a cell for each column: texts, numbers, booleans.
            step: The step.
            phase: See :meth:`log`.
        """
        return None

    def close(self) -> None:
        """Write pending data."""
        return None


class TensorBoard(Logger):
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


class WandbRun(Logger):
    """A run of Weights & Biases, or of trackio, which has the same API.

    With ``WANDB_MODE=offline``, the former stores the run on this machine; trackio does so by default.
    """

    def __init__(self, package: str, project: str = "", name: str = "", is_begun: bool = False, **options: Any) -> None:
        """Begin a run.

        Args:
            package: ``wandb`` or ``trackio``.
            project: The run's project.
            name: Its name.
            is_begun: Whether this process has already begun a run, which is used and not ended here.
            **options: Options of the package's ``init``.

        Raises:
            ConfigError: No user is logged in, or the service does not answer.
        """
        self._package, self._is_begun = importlib.import_module(package), is_begun
        if is_begun:
            return
        try:
            self._run = self._package.init(project=project, name=name, **options)
        except Exception as error:
            raise ConfigError(
                f"the logger {package!r} cannot begin a run: {' '.join(str(error).split())} Take it out of the list of "
                "loggers; with WANDB_MODE=offline, wandb keeps a run on this machine."
            ) from error

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """See :meth:`Logger.log`."""
        self._log(metrics, step, phase)

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int, phase: str = "train"
    ) -> None:
        """See :meth:`Logger.log_table`."""
        table = self._package.Table(columns=list(columns), data=[list(row) for row in rows])
        self._log({name: table}, step, phase)

    def _log(self, found: Mapping[str, Any], step: int, phase: str) -> None:
        if self._is_begun:  # its creator counts its steps
            self._package.log(dict(found), step=step)
        else:
            self._run.log({f"{phase}/step": step, **found})

    def close(self) -> None:
        """See :meth:`Logger.close`."""
        if not self._is_begun:
            self._run.finish()


class MLflowRun(Logger):
    """A run of MLflow on the server of ``MLFLOW_TRACKING_URI``."""

    def __init__(self, folder: Path, project: str, is_begun: bool = False) -> None:
        """Begin a run in the experiment of this name, or use the one that this process has already begun."""
        import mlflow

        self._mlflow, self._is_begun = mlflow, is_begun
        if is_begun:
            self._run = mlflow.active_run() or mlflow.last_active_run()
            return
        mlflow.set_experiment(project)
        self._run = mlflow.start_run(run_name=folder.name)

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """See :meth:`Logger.log`; characters that MLflow does not allow in names, such as ``@``, become ``_``."""
        named = {_NOT_IN_MLFLOW.sub("_", name): float(value) for name, value in metrics.items()}
        self._mlflow.log_metrics(named, step=step, run_id=self._run.info.run_id)

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int, phase: str = "train"
    ) -> None:
        """See :meth:`Logger.log_table`; an artifact for each step."""
        data = {column: [row[place] for row in rows] for place, column in enumerate(columns)}
        file = f"{_NOT_IN_MLFLOW.sub('_', name)}/{phase}_{step:06d}.json"
        self._mlflow.log_table(data=data, artifact_file=file, run_id=self._run.info.run_id)

    def close(self) -> None:
        """See :meth:`Logger.close`."""
        if not self._is_begun:
            self._mlflow.end_run()


class TableFiles(Logger):
    """Tables as plain files: ``tables/<name>.jsonl`` in a folder, an object per row with ``phase`` and ``step``."""

    def __init__(self, folder: Path, keeps: Callable[[Mapping[str, Any]], bool] = lambda line: True) -> None:
        """Write below a folder.

        Args:
            folder: The run's folder.
            keeps: Returns whether to keep a row of an earlier run that is resumed.
        """
        self._folder = folder / "tables"
        for path in sorted(self._folder.glob("*.jsonl")):
            lines = path.read_text("utf-8").splitlines(keepends=True)
            write_whole(path, "".join(line for line in lines if line.endswith("\n") and keeps(json.loads(line))))

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int, phase: str = "train"
    ) -> None:
        """See :meth:`Logger.log_table`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = ({"phase": phase, "step": step, **dict(zip(columns, row, strict=True))} for row in rows)
        with (self._folder / f"{name.replace('/', '_')}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


OPENED: dict[str, Callable[[Path, str], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": lambda folder, project: WandbRun("wandb", project, folder.name, dir=str(folder)),
    "trackio": lambda folder, project: WandbRun("trackio", project, folder.name),
    "mlflow": MLflowRun,
}
"""The factory of each logger, from a run's folder and the project's name."""


class Loggers(Closing):
    """Writes to several loggers at once; a context manager."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        """Write to these."""
        self._loggers = list(loggers)

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """See :meth:`Logger.log`."""
        for logger in self._loggers:
            logger.log(metrics, step, phase)

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int, phase: str = "train"
    ) -> None:
        """See :meth:`Logger.log_table`."""
        for logger in self._loggers:
            logger.log_table(name, columns, rows, step, phase)

    def close(self) -> None:
        """Close all of them; may be called twice."""
        with ExitStack() as closing:
            while self._loggers:
                closing.callback(self._loggers.pop().close)


def open_loggers(names: Sequence[str], folder: Path, project: str = "ragen") -> Loggers:
    """Begin a run with each of several trackers.

    Args:
        names: Keys of :data:`PACKAGES`.
        folder: The run's folder, which names the run; created if needed.
        project: The run's project.

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


def begun_loggers(names: Sequence[str], folder: Path) -> Loggers:
    """Write to the runs that another package has begun in this process, as verl does, and to plain files.

    Args:
        names: The names of its loggers; those that are not in :data:`PACKAGES` are ignored.
        folder: For :class:`TableFiles`.
    """
    begun: list[Logger] = [WandbRun(name, is_begun=True) for name in ("wandb", "trackio") if name in names]
    begun += [MLflowRun(folder, "", is_begun=True)] if "mlflow" in names else []
    return Loggers([*begun, TableFiles(folder)])


def check_loggers(names: Sequence[str], key: str) -> None:
    """Check names of loggers, and that their packages are installed.

    Args:
        names: The configured names.
        key: Their configuration key.

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
