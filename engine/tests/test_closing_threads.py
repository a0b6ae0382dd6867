"""Managers of several threads that close at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from support.episodes import EnvStateManager, config


@pytest.mark.parametrize("round_", range(3))
def test_managers_that_close_at_once_leave_one_pool_without_a_quarrel(round_, backend):
    settings = config({"Walk": {"env_type": "support.faulty_envs:Walk"}}, [("Walk", 8)], use_multiprocessing=True)
    managers = [EnvStateManager(settings) for _ in range(4)]
    for manager in managers:
        manager.reset()
    barrier = Barrier(len(managers))

    def close(manager):
        barrier.wait(30)
        manager.close()

    with ThreadPoolExecutor(len(managers)) as threads:
        for closed in [threads.submit(close, manager) for manager in managers]:
            closed.result(30)
