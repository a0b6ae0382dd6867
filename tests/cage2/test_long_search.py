"""The command of ``docs/cage2.md``, as configured: minutes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cage2_search.py"

CHANCE = -484.0  # what uniformly random actions get

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_best_order_beats_the_worst_by_more_than_the_noise(tmp_path):
    settings = ["n_workflows=6", "train_episodes_per_env=20", "simulator=embedded", f"checkpoint_dir={tmp_path}"]
    subprocess.run([sys.executable, str(EXAMPLE), *settings], check=True)
    rows = sorted(json.loads((tmp_path / "results.json").read_text()), key=lambda row: row["train_reward"])
    noise = 1.96 * math.hypot(rows[0]["noise"], rows[-1]["noise"])
    assert rows[-1]["train_reward"] - rows[0]["train_reward"] > noise
    assert all(row["train_reward"] > CHANCE for row in rows)
