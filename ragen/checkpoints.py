"""Checkpoints on disk: written atomically, and found by their names.

A checkpoint is one file, ``<phase>_<step>.pt``, of tensors and plain values; reading it runs no code from it. The
phases of a run follow one another in the order in which its folder is given them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen.errors import CheckpointError, one_line
from ragen.extras import needs
from ragen.files import replacing

with needs("train", "training"):
    import torch

VERSION = 2


def save(path: Path, content: Any) -> None:
    """Write tensors and plain values to a file, atomically and durably.

    Raises:
        CheckpointError: It cannot be written; an older file is unaffected.
    """
    try:
        with replacing(path, durable=True) as file:
            torch.save(content, file)
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be written: {one_line(error)}") from error


class CheckpointFolder:
    """The checkpoints of one run.

    Attributes:
        folder: Their folder.
        phases: The phases of the run, in order.
        keep: Number of the newest to keep; 0 keeps all.
    """

    def __init__(self, folder: Path, phases: Sequence[str], keep: int = 0) -> None:
        """Open a folder, which need not exist yet."""
        self.folder, self.phases, self.keep = folder, tuple(phases), keep
        self._name = re.compile(rf"({'|'.join(phases)})_(\d+)\.pt")

    def save(self, phase: str, step: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint, and remove the oldest ones beyond ``keep``.

        Args:
            phase: One of the folder's phases.
            step: Number of finished steps of the phase.
            state: Tensors and plain values; random states are added to it.

        Raises:
            CheckpointError: It cannot be written; older ones are unaffected.
        """
        path = self.folder / f"{phase}_{step:06d}.pt"
        save(path, {**state, "version": VERSION, "phase": phase, "step": step, "random": random_states()})
        self._remove_old()
        return path

    def latest(self) -> Path | None:
        """The newest checkpoint; None if there is none."""
        paths = self._paths()
        return paths[-1] if paths else None

    def newest(self) -> dict[str, Any] | None:
        """The content of the newest checkpoint; None if there is none.

        Raises:
            CheckpointError: It cannot be read.
        """
        path = self.latest()
        return None if path is None else self.load(path)

    def load(self, path: Path) -> dict[str, Any]:
        """Read a checkpoint.

        Raises:
            CheckpointError: It cannot be read, or another version of this package wrote it.
        """
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch may raise anything for a damaged file
            raise CheckpointError(
                f"the checkpoint {path} cannot be read ({one_line(error)[:200]}); remove it, and the run resumes from "
                "the one before."
            ) from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise CheckpointError(f"{path} is not a checkpoint of this version of the package.")
        return content

    def set_aside(self) -> None:
        """Rename the folder, so that a run that starts over gets a new one."""
        if self.latest() is not None:
            number = 1
            while (aside := self.folder.with_name(f"{self.folder.name}.{number}")).exists():
                number += 1
            self.folder.rename(aside)

    def _paths(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        found = (self._name.fullmatch(path.name) for path in self.folder.iterdir())
        return [
            self.folder / each[0]
            for each in sorted(filter(None, found), key=lambda each: (self.phases.index(each[1]), int(each[2])))
        ]

    def _remove_old(self) -> None:
        if self.keep > 0:
            for path in self._paths()[: -self.keep]:
                path.unlink(missing_ok=True)


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """The states of the global generators of Python, NumPy and torch, as plain values and a tensor."""
    version, internal, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state(),
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Restore the states of :func:`random_states`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"])
