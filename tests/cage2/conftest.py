"""Tests here leave no process behind, and find no CAGE 2 but the one they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cage2 import unpacked
from support.leftovers import processes, until


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail a test that leaves a process behind."""
    before = set(processes())
    yield
    assert until(lambda: set(processes()) <= before), f"left behind: {processes()}"


@pytest.fixture(autouse=True)
def no_path_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have set it."""
    monkeypatch.delenv("RAGEN_CAGE2_PATH", raising=False)


@pytest.fixture(scope="session")
def cage2_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the real one; skips where its archive is not there."""
    return unpacked(tmp_path_factory.mktemp("cage2"))
