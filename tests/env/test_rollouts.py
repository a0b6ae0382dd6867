"""Heavy environments behind the manager: equal sequentially, in workers and after kills, and nothing is left behind.

Players ask for an ``example_action`` before each turn, so it is the same too, also of environments that were rebuilt.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import psutil
import pytest

from ragen.env import resolve_env
from ragen.errors import MissingExtraError, SandboxError
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, kill_workers, play_answers

FIELDS: dict[str, dict[str, Any]] = {
    "alfworld": {"num_train_games": 2, "task_types": [1]},
    "code": {"cpu_seconds": 0.1},
    "deepcoder": {"max_steps": 2, "cpu_seconds": 0.1},
    "miniwob": {"tasks": ["login-user", "click-test", "choose-list", "click-checkboxes"]},
    "search": {"entities": 120, "max_searches": 3},
    "terminal": {"cpu_seconds": 0.3},
    "textworld": {"families": ["coin"], "games": 2},
}


def programs() -> set[psutil.Process]:
    """The sandboxes and browsers of this process and its workers."""

    def is_one(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.name() == "bwrap" or "chrom" in process.name()
        return False

    return set(filter(is_one, psutil.Process().children(recursive=True)))


def rollouts(env_type: str, mode: Any, kill_at: tuple[int, ...] = ()) -> list[Any]:
    tags = {"It": {"env_type": env_type, "env_config": FIELDS[env_type], "max_actions_per_traj": 9}}
    with EnvStateManager(config(tags, [("It", 2)], group_size=2, use_multiprocessing=mode)) as manager:

        def answers(cache: dict[str, Any], turn: int) -> list[str]:
            return [manager.example_action(cache["env_id"], Random(f"{cache['env_id']}/{turn}"))]

        return [
            play_answers(manager, answers, 5, lambda turn: turn in kill_at and kill_workers(manager)) for _ in range(2)
        ]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.processes
@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize(
    "env_type", [pytest.param(name, marks=[pytest.mark.slow] if name == "miniwob" else []) for name in FIELDS]
)
def test_rollouts_are_equal_in_workers_and_after_kills_and_nothing_is_left(env_type: str) -> None:
    env_class, config_class = resolve_env(env_type)
    try:
        env = env_class(config_class(**FIELDS[env_type]))  # type: ignore[misc]
        env.reset(0)
    except (MissingExtraError, SandboxError) as lacks:
        pytest.skip(str(lacks))
    env.close()
    before = programs()
    expected = rollouts(env_type, False)
    assert rollouts(env_type, True) == expected == rollouts(env_type, True, kill_at=(1, 3))
    assert rollouts(env_type, "auto") == expected
    _, still = psutil.wait_procs(programs() - before, timeout=60)
    assert not still
