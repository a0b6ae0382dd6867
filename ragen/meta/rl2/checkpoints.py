"""Checkpoints of a training run: written whole or not at all; reading one runs no code that it may bring."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ragen.errors import CheckpointError
from ragen.extras import needs
from ragen.files import replacing

with needs("meta", "an agent of meta-RL"):
    import torch

_NAME = re.compile(r"iteration_(\d+)\.pt")
VERSION = 1


def save(folder: Path, iteration: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, and remove those that are too old.

    Args:
        folder: Where checkpoints lie.
        iteration: How many iterations are done.
        state: Tensors and plain values.
        keep: How many of the newest stay; 0 for all.

    Raises:
        CheckpointError: It cannot be written; older ones are still there.
    """
    path = folder / f"iteration_{iteration:06d}.pt"
    try:
        with replacing(path, durable=True) as file:
            torch.save({**state, "version": VERSION, "iteration": iteration}, file)
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be written: {error}") from error
    for old in _paths(folder)[:-keep] if keep else []:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> dict[str, Any] | None:
    """What the newest checkpoint holds; None where there is none.

    Raises:
        CheckpointError: It cannot be read, or another version wrote it.
    """
    paths = _paths(folder)
    if not paths:
        return None
    try:
        state = torch.load(paths[-1], map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the damage makes it raise
        raise CheckpointError(f"the checkpoint {paths[-1]} cannot be read; remove it to use the one before.") from error
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise CheckpointError(f"{paths[-1]} is not a checkpoint of this version of the package.")
    return state


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("iteration_*.pt") if _NAME.fullmatch(path.name))
