"""Check which tasks play equally: ``python -m ragen.env.miniwob [--seeds 2] [--steps 6] [TASK ...]``.

Two processes with different hash seeds play the same seeds with the same example actions, the tasks in different
orders, each episode in its own browser context. A task is not equal if a page, a reward or an end differs. For each
task, the command prints its name, ``equal`` or ``not equal``, and the first seed and step that differed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from itertools import zip_longest
from random import Random

from ragen.commands import CommandParser, positive
from ragen.env.miniwob.browser import pages
from ragen.env.miniwob.config import MiniWobEnvConfig
from ragen.env.miniwob.env import MiniWobEnv


def all_tasks() -> list[str]:
    """The names of all tasks in the package."""
    return sorted(path.stem for path in (pages() / "miniwob").glob("*.html"))


def episode(name: str, seed: int, steps: int) -> list[str]:
    """Play an episode; returns a digest of everything after each step."""
    config = MiniWobEnvConfig()
    config.tasks = [name]  # bypasses the check: the package may have new tasks
    env, rng, found = MiniWobEnv(config), Random(f"{name} {seed}"), []
    shown, done, number = env.reset(seed), False, 0
    heard: list[object] = [shown]
    while True:
        found.append(hashlib.sha256(json.dumps(heard).encode()).hexdigest()[:12])
        if done or number >= steps:
            break
        action = env.example_action(rng)
        shown, reward, done, info = env.step(action)
        heard, number = [action, shown, reward, done, info], number + 1
    env.close()
    return found


def main() -> int:
    """Run the command; returns 1 if a task is not equal."""
    reader = CommandParser(
        prog="python -m ragen.env.miniwob", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument("tasks", nargs="*", help="names; all tasks of the package without any")
    reader.add_argument("--seeds", type=positive, default=2)
    reader.add_argument("--steps", type=positive, default=6)
    reader.add_argument("--play", type=int, help=argparse.SUPPRESS)
    given = reader.parse_args()
    names = given.tasks or all_tasks()
    if given.play is not None:
        keeper = MiniWobEnv()
        keeper.reset(0)  # the browser stays while environments come and go
        Random(given.play).shuffle(names)
        for name in names:
            print(json.dumps([name, [episode(name, seed, given.steps) for seed in range(given.seeds)]]), flush=True)
        keeper.close()
        return 0
    line = [sys.executable, "-m", "ragen.env.miniwob", "--seeds", str(given.seeds), "--steps", str(given.steps)]
    players = [
        subprocess.Popen(
            [*line, "--play", str(number), *names],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": str(number)},
        )
        for number in (0, 1)
    ]
    first, second = (dict(map(json.loads, player.communicate()[0].splitlines())) for player in players)
    differing = 0
    for name in names:
        verdict = compared(first.get(name), second.get(name))
        differing += verdict != "equal"
        print(f"{name:32} {verdict}")
    return int(differing > 0)


def compared(first: list[list[str]] | None, second: list[list[str]] | None) -> str:
    """The verdict on a task, given the digests of both processes; None for a process that could not play it."""
    if first is None or second is None:
        return "failed"
    for seed, episodes in enumerate(zip(first, second, strict=True)):
        for step, digests in enumerate(zip_longest(*episodes)):
            if digests[0] != digests[1]:
                return f"not equal: seed {seed}, step {step}"
    return "equal"


if __name__ == "__main__":
    sys.exit(main())
