"""Accidents while clients play: ``benchmarks/serve_chaos.py``, small."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("websockets")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_cuts_kills_and_a_restart_change_no_episode():
    numbers = {"sessions": 4, "episodes": 1, "turns": 5, "seeds": 1, "cuts": 6, "kills": 1, "restarts": 1}
    words = [f"--{name}={number}" for name, number in numbers.items()]
    command = [sys.executable, "benchmarks/serve_chaos.py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differing episodes, 0 with another count of turns, 0 failed sessions, 0 journals left" in done.stdout
