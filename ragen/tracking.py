"""The logs of a training: ``metrics.jsonl``, written by each recipe itself, and TensorBoard beside it.

::

    with open_loggers(["tensorboard"], folder) as loggers:
        loggers.log({"train/success": 0.5}, step=1)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from envlanes.closing import Closing
from ragen.errors import ConfigError, install_command

METRICS_FILE = "metrics.jsonl"
"""The file of a training's metrics, with one line per step."""
PACKAGES = {"console": "", "tensorboard": "tensorboard"}
"""Names of loggers, and the package that each needs; ``console`` stands for the commands' own output."""


class Logger(Protocol):
    """A destination of metrics."""

    def log(self, metrics: Mapping[str, float], step: int, phase: str = "train") -> None:
        """Write one step's metrics.

        Args:
            metrics: Numbers by name.
            step: The step.
            phase: The phase of the step, if a run has several phases whose steps each start at 1.
        """
        return None

    def close(self) -> None:
        """Write pending data."""
        return None


class TensorBoard(Logger):
    """TensorBoard's event files."""

    def __init__(self, folder: Path) -> None:
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


def open_loggers(names: Sequence[str], folder: Path) -> Loggers:
    """Open the loggers of a run.

    Args:
        names: Keys of :data:`PACKAGES`.
        folder: The run's folder; created if needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return Loggers([TensorBoard(folder)] if "tensorboard" in names else [])


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
            raise ConfigError(
                f"configuration key {key!r} has {name!r}, whose package is not installed: {install_command('train')}."
            )
