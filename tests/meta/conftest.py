"""Tests here leave no process behind, and compute on one thread, as a learner beside workers does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.later import torch
from support.leftovers import processes, until


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves a process behind."""
    torch.set_num_threads(1)
    before = set(processes())
    yield
    assert until(lambda: set(processes()) <= before), f"left behind: {processes()}"
