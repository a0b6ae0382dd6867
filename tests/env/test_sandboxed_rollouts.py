"""Code and terminal behind the manager: equal sequentially, in workers and after kills, and nothing is left behind."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cache as cache_results
from typing import Any

import psutil
import pytest

from ragen.env.code.config import CodeEnvConfig
from ragen.env.code.problems import generate as problem
from ragen.env.terminal.config import TerminalEnvConfig
from ragen.env.terminal.env import generate as task
from ragen.env.terminal.families import FAMILIES
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import SEED, config, kill_workers, play_answers
from support.sandboxes import needs_programs, needs_shell

TURNS = 3
SEEDS = range(SEED, SEED + 8)
PROGRAMS = [
    "def f(*args): return 0",
    "while True: pass",
    "import os\nos.fork()",
    "```\nprint(open('/proc/1/maps'))\n```",
]
COMMANDS = [
    "ls -la",
    "echo $RANDOM > kept; date >> kept; cat kept",
    "cd /tmp; mktemp; pwd",
    "while :; do :; done",
    "rm -r *",
]
TAGS = {
    "Code": {"env_type": "code", "env_config": {"cpu_seconds": 0.1}, "max_actions_per_traj": 5},
    "DeepCoder": {"env_type": "deepcoder", "env_config": {"max_steps": 2}, "max_actions_per_traj": 5},
    "Terminal": {"env_type": "terminal", "env_config": {"cpu_seconds": 0.3}, "max_actions_per_traj": 9},
}


def answers(cache: dict[str, Any], turn: int) -> list[str]:
    """What a player might say: now and then what is right."""
    rng = random.Random(f"{cache['env_id']}/{turn}")
    first = cache["history"][0]["state"]
    solution = next((each.solution for each in instances(cache["tag"]) if first.startswith(each.text)), "")
    if cache["tag"] == "Terminal":
        return [solution, "submit"] if rng.random() < 0.6 else [rng.choice(COMMANDS)]
    return [solution] if rng.random() < 0.4 else [rng.choice(PROGRAMS)]


@cache_results
def instances(tag: str) -> list[Any]:
    """The tasks or problems of the seeds that the manager deals out."""
    if tag == "Terminal":
        return [task(seed, "train", tuple(FAMILIES), TerminalEnvConfig().files) for seed in SEEDS]
    code = CodeEnvConfig()
    return [problem(seed, "train", code.levels, None, code.tests) for seed in SEEDS]


def sandboxes() -> set[psutil.Process]:
    """Those of this process and its workers."""
    return set(filter(is_sandbox, psutil.Process().children(recursive=True)))


def is_sandbox(process: psutil.Process) -> bool:
    """Whether a process, which may have ended meanwhile, is a sandbox."""
    with suppress(psutil.NoSuchProcess):
        return process.name() == "bwrap"
    return False


@pytest.mark.timeout(600)  # on a busy machine
@needs_programs
@needs_shell
@pytest.mark.parametrize("env_type", ["code", "terminal"])
def test_rollouts_are_equal_in_workers_and_after_kills_and_nothing_is_left(env_type: str) -> None:
    groups = [("Terminal", 2)] if env_type == "terminal" else [("Code", 2), ("DeepCoder", 1)]
    tags = {tag: TAGS[tag] for tag, _ in groups}

    def made(mode: Any) -> EnvStateManager:
        return EnvStateManager(config(tags, groups, group_size=2, use_multiprocessing=mode))

    before = sandboxes()
    with made(False) as manager:
        expected = [play_answers(manager, answers, TURNS) for _ in range(2)]
    assert sandboxes() == before
    with made(True) as manager:
        assert play_answers(manager, answers, TURNS) == expected[0]
        killed = play_answers(manager, answers, TURNS, lambda turn: turn == 1 and kill_workers(manager))
        assert killed == expected[1]
        left = sandboxes() - before
    _, still = psutil.wait_procs(left, timeout=60)
    assert not still
    rewards = [turn.get("reward", 0) for cache in expected[0] + expected[1] for turn in cache["history"]]
    assert max(rewards) == 1.0, "something was solved"
