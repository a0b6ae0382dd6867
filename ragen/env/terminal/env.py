"""A terminal: shell commands in a sandbox, on files that are written anew for every command.

Each command starts in a fresh file system, which is filled with the task's files and the layer of earlier changes,
always in the same order; afterwards, its changes become part of the layer. A rebuilt or branched episode therefore sees
exactly what an uninterrupted one sees. A command that was stopped changes nothing.

Anything that could differ between runs is fixed: the clock (by libfaketime), random bytes, addresses, process numbers,
file times. docs/terminal.md lists the exceptions.
"""

from __future__ import annotations

import calendar
import os
import re
import runpy
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.game import PickledBySnapshot, TextGame
from ragen.env.sandbox.host import SHELL, STOPPED, Ended, InSandbox, faketime, require_sandbox
from ragen.env.sandbox.inside import HOME
from ragen.env.terminal import layers
from ragen.env.terminal.config import GENERATED, TerminalEnvConfig
from ragen.env.terminal.families import FAMILIES, Task
from ragen.env.terminal.layers import Entry, Files, Layer
from ragen.errors import ConfigError

SUBMIT = "submit"
LONGEST = 20_000  # maximum characters of a command

_SCRIPT = 'trap "pwd -P >&9" EXIT; unset EPOCHREALTIME EPOCHSECONDS SRANDOM; RANDOM=$2 SECONDS=0; eval "$1"'
_FENCED = re.compile(r"^\s*```[^\n`]*\n(.*?)```\s*$", re.S)


class TerminalEnv(PickledBySnapshot, InSandbox, TextGame, BaseLanguageBasedEnv):
    """Gives a task that is done with shell commands.

    Attributes:
        task: The task; None before the first reset.
        layer: The changes made by commands so far.
        folder: The working directory of the next command.
        steps: Number of commands given in this episode.
    """

    config_class = TerminalEnvConfig
    cost_hint = "heavy"
    profile = SHELL
    task: Any = None  # a Task once reset
    _drawn: tuple[int, str] | None = None
    action_hint = "a shell command, or: submit"

    def __init__(self, config: TerminalEnvConfig | None = None) -> None:
        """Check that tasks can be read and that a sandbox is available.

        Raises:
            ConfigError: The folder of tasks cannot be read.
            SandboxError: A sandbox cannot run here.
        """
        super().__init__(config)
        require_sandbox(self.profile)
        if self.config.tasks != GENERATED:
            tasks_in(self.config.tasks)
            self.profile = SHELL._replace(hidden=os.path.realpath(self.config.tasks))  # with what is expected

    def _begin(self, seed: int, mode: str | None) -> None:
        """Draw a task.

        Raises:
            SandboxError: A sandbox cannot run here.
        """
        self.hold_sandbox()
        self._drawn = seed, "train" if mode in (None, "train") else "val"
        self.layer: Layer = {}
        self.folder, self.steps = HOME, 0
        self._draw()
        self.observation = f"{self.task.text}\nSay {SUBMIT} when you are done.\n{self._prompt()}"

    def _draw(self) -> None:
        if self._drawn is not None:
            config = self.config
            self.task, self.base = _drawn(*self._drawn, config.tasks, tuple(config.families or ()), config.files)

    save, load = snapshots("seed", "_drawn", "layer", "folder", "steps", "observation", after=_draw)

    def _play(self, action: str) -> StepResult:
        """Run a command, or submit.

        Args:
            action: A command, fenced or not, or ``submit``; any text.

        Returns:
            The observation, with the command's output; the reward (0 until the episode is over); whether the episode
            is over; and info with ``success``, ``exit_code``, ``goals_reached`` and ``goals``.

        Raises:
            SandboxError: The sandbox had ended, or could not prepare the command.
        """
        command = _command(action)
        submitted = command == SUBMIT
        valid = bool(command) and len(command) <= LONGEST and "\0" not in command
        before, exit_code = (self.layer, self.folder), 0
        if submitted:
            self.observation = ""
        elif not valid:
            self.observation = f"This is not a command.\n{self._prompt()}"
        else:
            exit_code = self._run(command)
        self.steps += 1
        done = submitted or self.steps >= self.config.max_steps
        goals = self._goals()
        success = done and all(goals)
        reward = 0.0
        if done:
            reward = float(success) if self.config.reward == "all" else sum(goals) / len(goals)
            self.observation += f"{'' if submitted else chr(10)}Goals reached: {sum(goals)} of {len(goals)}."
        info = {
            "action_is_valid": valid,
            "action_is_effective": submitted or (self.layer, self.folder) != before,
            "success": success,
            "exit_code": exit_code,
            "goals_reached": sum(goals) if done else 0,
            "goals": len(goals),
        }
        return self.observation, reward, done, info

    def _goals(self) -> list[bool]:
        home = {path[5:]: entry for path, entry in self.files().items() if path.startswith("home/")}
        return self.task.check(home)

    def files(self) -> dict[str, Entry]:
        """The current files, by path."""
        return layers.merged(self.base, self.layer)

    def _run(self, command: str) -> int:
        files = self.files()
        listed = [
            [path, kind, mode, data.decode("utf-8", "surrogateescape") if kind == "l" else len(data)]
            for path, (kind, mode, data) in files.items()
        ]
        job = {
            "kind": "shell",
            "command": command,
            "script": _SCRIPT,
            "folder": self.folder,
            "files": listed,
            "arguments": [str(self.steps + 1)],
            "environ": {**_environment(), "FAKERANDOM_SEED": f"0x{self.steps + 1:016X}"},
        }
        body = b"".join(entry.data for entry in files.values() if entry.kind == "f")
        began = time.time()
        ended = self.run_inside(job, self.config.limits(), body)
        if ended.stopped:
            self.observation = (
                f"The command was stopped, and has changed nothing: {STOPPED[ended.stopped]}.\n{self._prompt()}"
            )
            return -1
        self._take(ended)
        printed = ended.body[: ended.header["body"]].decode("utf-8", "replace")
        shown = _shortened(_dated(printed, self._masked(began)), self.config.max_output)
        status = f"[exit code {ended.status}]\n" if ended.status else ""
        self.observation = f"{shown}{chr(10) if shown and shown[-1] != chr(10) else ''}{status}{self._prompt()}"
        return ended.status

    def _masked(self, began: float) -> tuple[float, float]:
        """The interval of real times that the output may contain."""
        return self.hold_sandbox().value.started, max(began, time.time())

    def _take(self, ended: Ended) -> None:
        """Record a command's changes."""
        at, changes = ended.header["body"], dict[str, Entry | None]()
        for path, kind, mode, detail in ended.header["changed"]:
            if kind == "f":
                changes[path] = Entry("f", mode, ended.body[at : at + detail])
                at += detail
            else:
                changes[path] = Entry(kind, mode, (detail or "").encode("utf-8", "surrogateescape"))
        changes.update(dict.fromkeys(ended.header["gone"]))
        self.layer = layers.changed(self.base, self.layer, changes)
        folder = ended.header["folder"].rstrip("\n").rpartition("\n")[2]
        self.folder = folder if folder.startswith("/") else self.folder

    def _prompt(self) -> str:
        folder = self.folder
        shown = "~" + folder[len(HOME) :] if folder == HOME or folder.startswith(f"{HOME}/") else folder
        return f"agent@sandbox:{shown.encode('utf-8', 'replace').decode()}$"

    def example_action(self, rng: Random) -> str:
        """A command: one that does the task, one that looks around, or one that fails."""
        looks = [
            "ls -la",
            "find . -type f | head -n 5",
            "cat * 2>&1 | head -n 3",
            "date; echo $RANDOM $$",
            "cd /nowhere",
        ]
        return rng.choice([self.task.solution or "true", *looks, "echo kept > kept.txt", "sleep 5"])


def _command(action: str) -> str:
    """The command in an answer, without a fence."""
    fenced = _FENCED.match(action)
    return (fenced[1] if fenced else action).strip()


@lru_cache(maxsize=1)
def _environment() -> dict[str, str]:
    """The environment variables of every command."""
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "agent"), ("EMAIL", "agent@sandbox"))
    }
    return {
        "HOME": HOME,
        "USER": "agent",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_PRELOAD": faketime() or "",
        "FAKETIME": "2024-01-01 00:00:00",
        **who,
    }


def _shortened(text: str, most: int) -> str:
    """Shorten a text to its beginning and its end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _dated(text: str, between: tuple[float, float]) -> str:
    """Replace real dates, which new files have, by the date of the simulated clock."""
    first, last = (int(moment // 86400) for moment in between)
    for number in {first, *range(max(first, last - 400), last + 1)}:
        day = time.gmtime(number * 86400)
        month = calendar.month_abbr[day.tm_mon]
        text = re.sub(rf"\b{month} {day.tm_mday:2}  ?(\d\d:\d\d|{day.tm_year})\b", "Jan  1  2024", text)
        iso = rf"\b{day.tm_year}-{day.tm_mon:02}-{day.tm_mday:02}([ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?"
        text = re.sub(iso, lambda found: "2024-01-01" + re.sub(r"\d", "0", found[1] or ""), text)
    return text


# Tasks


@lru_cache(maxsize=64)
def _drawn(seed: int, split: str, tasks: str, families: tuple[str, ...], files: int) -> tuple[Task, Files]:
    """Draw the task of a seed, with its base of files."""
    if tasks == GENERATED:
        task = generate(seed, split, families or tuple(FAMILIES), files)
    else:
        there = tasks_in(tasks)
        task = there[Random(seed).randrange(len(there))]
    return task, layers.based_on(task.files)


def generate(seed: int, split: str, families: tuple[str, ...], files: int) -> Task:
    """Generate the task of a seed; tasks of different splits are drawn independently."""
    attempt = 0
    while True:
        rng = Random(f"{split}/{seed}/{attempt}")
        task = FAMILIES[rng.choice(families)](rng, files)
        if not all(task.check(task.files)):  # not done yet at the start
            return task
        attempt += 1


@lru_cache(maxsize=4)
def tasks_in(folder: str) -> tuple[Task, ...]:
    """The tasks in a folder, sorted by name.

    Each is a folder with ``instruction.txt``; ``files/``, the initial home folder; and ``check.py``, whose function
    ``check`` receives the home folder's files by path and returns a list of booleans.

    Raises:
        ConfigError: There are no tasks, or one is incomplete.
    """
    found = []
    for path in sorted(each for each in Path(folder).iterdir() if each.is_dir()):
        instruction = path / "instruction.txt"
        if not instruction.is_file():
            raise ConfigError(f"terminal: env_config key tasks={folder!r}: {path.name} has no instruction.txt.")
        files = layers.read_tree(path / "files") if (path / "files").is_dir() else {}
        found.append(Task(instruction.read_text("utf-8").strip(), files, _check_of(path / "check.py")))
    if not found:
        raise ConfigError(f"terminal: env_config key tasks={folder!r}: it contains no tasks.")
    return tuple(found)


def _check_of(path: Path) -> Callable[[Files], list[bool]]:
    check = runpy.run_path(str(path)).get("check") if path.is_file() else None
    if not callable(check):
        raise ConfigError(f"terminal: env_config key tasks: {path} is to define a function check.")
    return lambda home: [bool(each) for each in check(home)] or [False]
