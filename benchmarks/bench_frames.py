"""Seconds that runs take to become data frames: 2,000 trajectories of eight turns, by library and by what a row is.

python benchmarks/bench_frames.py [TRAJECTORIES]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sized
from functools import partial
from importlib import import_module
from pathlib import Path

import ragen
from ragen.llm_agent.evaluation.frames import LIBRARIES, PER

TURNS = 8


def record(env_id: int) -> dict[str, object]:
    """A trajectory as ``rollouts.jsonl`` has it, of the usual size of a text game's."""
    board = "\n".join(["# # # # # #", "# _ _ _ O #", "# _ X _ P #", "# _ _ _ _ #"] * 2)
    said = "<think>The box has to go up, so I walk around it first.</think><answer>Left || Up</answer>"
    asked = {"role": "user", "content": f"Reward: 0\n\nTurn 1:\nState:\n{board}\nAlways output: an answer"}
    return {
        "env_id": env_id, "group_id": env_id // 4, "tag": "SimpleSokoban", "seed": env_id, "mode": "val",
        "messages": [asked, {"role": "assistant", "content": said}] * TURNS, "actions": [[3, 1]] * TURNS,
        "rewards": [-0.1] * TURNS, "infos": [{"action_is_valid": True, "success": False}] * TURNS,
        "raw_replies": [said] * TURNS, "penalty": 0, "success": False, "metrics": {"SimpleSokoban/success": 0.0},
    }  # fmt: skip


def main() -> None:
    """Print a line for each import, and for each library and kind of row; a row's time includes reading the run."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        path.write_text("".join(json.dumps(record(env_id)) + "\n" for env_id in range(count)), "utf-8")
        print(f"{count:,} trajectories, {path.stat().st_size / 1e6:.1f} MB")
        for library in LIBRARIES:
            _timed(f"import {library}", partial(import_module, library))
        one = Path(folder) / "one.jsonl"
        one.write_text(json.dumps(record(0)) + "\n", "utf-8")
        _timed("import what ragen.frames needs", lambda: ragen.frames(one))
        for library in LIBRARIES:
            for per in PER:
                make = partial(ragen.frames, path, per=per, library=library)
                _timed(f"{library}, a row a {per}", make)


def _timed(what: str, work: Callable[[], object]) -> None:
    wall, used = time.perf_counter(), time.process_time()
    made = work()
    spent = time.perf_counter() - wall, time.process_time() - used
    rows = f", {len(made):,} rows" if isinstance(made, Sized) and len(made) > 1 else ""
    print(f"{what}{rows}: {spent[0]:.2f} s ({spent[1]:.2f} s of processor time)")


if __name__ == "__main__":
    main()
