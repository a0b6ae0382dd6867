"""Best of n from the terminal: the example ranks its branches, the same in main and in lanes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # this tree, whatever is installed
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=env, check=False)


@pytest.mark.parametrize("parallel", [(), ("--parallel",)])
def test_best_of_n_ranks_its_branches(parallel: tuple[str, ...]) -> None:
    told = run("best_of_n.py", "--seed", "1003", "--turn", "2", "--copies", "6", *parallel)
    assert told.returncode == 0, told.stderr
    ranked = re.findall(r"^env +(\d+)  reward +(-?[\d.]+)", told.stdout, re.MULTILINE)
    rewards = [float(reward) for _, reward in ranked]
    assert sorted(int(env_id) for env_id, _ in ranked) == [1, 2, 3, 4, 5, 6]
    assert rewards == sorted(rewards, reverse=True) and len(set(rewards)) > 1
    assert f"best, env {ranked[0][0]}: " in told.stdout
    assert told.stdout == run("best_of_n.py", "--seed", "1003", "--turn", "2", "--copies", "6").stdout


def test_best_of_n_says_what_it_cannot_do() -> None:
    late = run("best_of_n.py", "--env", "bandit", "--turn", "3")
    assert late.returncode == 1 and "since its episode is over" in late.stdout
    spoken = run("best_of_n.py", "--env", "countdown")
    assert spoken.returncode == 1 and "takes any text" in spoken.stderr
