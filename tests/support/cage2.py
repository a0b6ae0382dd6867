"""The real CAGE Challenge 2, where its archive lies beside the repository; and runs of environments in lanes."""

from __future__ import annotations

import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen.cage2 import ParallelEnvWrapper
from support.leftovers import processes, until

ARCHIVE = Path(__file__).resolve().parents[3] / "shared" / "peers" / "cage-challenge-2.tar.gz"


def unpacked(folder: Path) -> Path:
    """A checkout of CAGE Challenge 2 in a folder; skips the test where the archive is not there."""
    if not ARCHIVE.is_file():
        pytest.skip(f"no {ARCHIVE}: these tests play the real CAGE Challenge 2, which is no part of this repository")
    pytest.importorskip("yaml", reason="CAGE Challenge 2 reads its scenarios with PyYAML")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "cage-challenge-2"


def kill(envs: ParallelEnvWrapper) -> None:
    """Kill all workers, as an outsider does, and wait until they are gone."""
    pids = [home.pid for home in envs.stats() if home.lane != "main" and home.pid]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: not set(pids) & set(processes()))


def run(steps: int, kill_at: tuple[int, ...] = (), n_envs: int = 5, **given: Any) -> list[Any]:
    """All that environments give under actions that are the same for the same steps and environments."""
    actions = np.random.default_rng(5).integers(145, size=(steps, n_envs))
    with ParallelEnvWrapper(n_envs, **given) as envs:
        found: list[Any] = [plain(envs.reset())]
        for step in range(steps):
            if step in kill_at:
                kill(envs)
            found.append(plain(envs.step(actions[step])))
        found += [envs.get_true_states(), plain(envs.reset()), plain(envs.step(actions[0]))]
    return found


def plain(value: Any) -> Any:
    """A value that ``==`` compares, arrays by their type and bytes."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
