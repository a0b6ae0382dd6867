"""Managers of several threads that close at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from ragen.llm_agent.es_manager import EnvStateManager


@pytest.mark.parametrize("round_", range(3))
def test_managers_that_close_at_once_leave_one_pool_without_a_quarrel(round_: int, backend: str) -> None:
    tags = {"tags": ["Bandit"], "n_groups": [4]}
    config = {
        "es_manager": {
            "use_multiprocessing": True,
            "max_workers": 2,
            "backend": backend,
            "crash_report_dir": None,
            "train": {"env_groups": 4, "group_size": 2, "env_configs": tags},
        },
        "custom_envs": {"Bandit": {"env_type": "bandit", "max_actions_per_traj": 1}},
        "seed": {"train": 1},
    }
    managers = [EnvStateManager(config) for _ in range(4)]
    for manager in managers:
        manager.reset()
    barrier = Barrier(len(managers))

    def close(manager: EnvStateManager) -> None:
        barrier.wait(30)
        manager.close()

    with ThreadPoolExecutor(len(managers)) as threads:
        for closed in [threads.submit(close, manager) for manager in managers]:
            closed.result(30)
