"""Whole programs, run as a user runs them: a fresh interpreter with a main script of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

HEAD = """
import os, random, signal, sys, threading, time
from support.episodes import EnvStateManager, config, freeze, inputs, play, register_env, sequential
from support.toy_envs import BaseEnv
"""


def write(folder: Path, body: str, head: str = HEAD) -> Path:
    """A script with the usual imports and this body, under the guard that executors need."""
    path, body = folder / "script.py", textwrap.dedent(body)
    if os.environ.get("RAGEN_TESTS_BACKEND") == "executor":
        body = 'if __name__ == "__main__":\n' + textwrap.indent(body, "    ")
    path.write_text(head + body)
    return path


def environment() -> dict[str, str]:
    """This one's, less what would make Python itself speak when the script is aborted."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}


def start(script: Path, *options: str, **popen: object) -> subprocess.Popen[str]:
    """Start a script; its output is piped."""
    return subprocess.Popen(
        [sys.executable, str(script), *options],
        env=environment(),
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,  # type: ignore[call-overload]
    )


def run(script: Path, *options: str) -> str:
    """Run a script to its end, which must be a good one; what it printed."""
    process = start(script, *options)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out
