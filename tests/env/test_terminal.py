"""The terminal: tasks, layers, checks; commands are run in the sandbox where there is one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ragen.env.sandbox.host import SHELL
from ragen.env.terminal.config import TerminalEnvConfig
from ragen.env.terminal.env import SUBMIT, TerminalEnv, generate
from ragen.env.terminal.families import FAMILIES
from support.sandboxes import needs_shell, why_not


def env_of(**settings: Any) -> TerminalEnv:
    return TerminalEnv(TerminalEnvConfig(**{"max_steps": 50, **settings}))


@pytest.fixture
def env() -> Any:
    if reason := why_not(SHELL):
        pytest.skip(reason)
    made = env_of()
    made.reset(1)
    yield made
    made.close()


def shown(env: TerminalEnv, command: str) -> str:
    """What a command prints, without the prompt."""
    return env.step(command)[0].rpartition("\n")[0]


def solution(env: TerminalEnv) -> str:
    assert env.task is not None
    return env.task.solution


# Tasks


@pytest.mark.parametrize("name", FAMILIES)
def test_a_task_is_not_done_as_it_begins(name: str) -> None:
    for seed in range(10):
        task = generate(seed, "train", (name,), 12)
        assert not all(task.check(task.files))
        assert task.files == generate(seed, "train", (name,), 12).files != generate(seed, "val", (name,), 12).files


@needs_shell
@pytest.mark.parametrize("name", FAMILIES)
def test_a_command_does_each_task_and_nothing_does_none(name: str) -> None:
    env = env_of(families=[name])
    for seed in range(3):
        text = env.reset(seed)
        assert env.step("true")[1] == 0.0
        said = env.step(solution(env))[0]
        assert "not permitted" not in said, "a call that a common command makes is missing from the list"
        observation, reward, done, info = env.step(SUBMIT)
        assert (reward, done, info["success"]) == (1.0, True, True), (text, said, observation)
        env.reset(seed)
        observation, reward, done, info = env.step(SUBMIT)
        assert (done, info["success"]) == (True, False)
        assert reward < 1.0
    env.close()


# Commands


def test_files_and_the_folder_stay_and_variables_do_not(env: TerminalEnv) -> None:
    assert shown(env, "x=1; mkdir -p a/b; cd a; echo one > b/f; chmod 600 b/f; ln -s b/f l") == ""
    assert env.folder == "/home/agent/a"
    assert shown(env, "echo [$x] $(cat l) $(stat -c %a b/f) $PWD") == "[] one 600 /home/agent/a"
    env.step("rm -r b; echo two > /tmp/kept")
    assert shown(env, "ls; cat /tmp/kept; cat l") == "l\ntwo\ncat: l: No such file or directory\n[exit code 1]"


def test_names_and_contents_of_any_bytes_are_kept(env: TerminalEnv) -> None:
    env.step(r"printf '\xff\x00\n' > $'odd\n\xff name'; mkdir $'\xe4'; ln -s $'\xff' link; printf '%s' -- > -rf")
    listing = "ls -1Ab; od -c odd*; readlink link | od -c"
    first = shown(env, listing)
    assert "\\377" in first
    assert shown(env, listing) == first
    other = env_of()
    other.load(env.save())
    assert other.files() == env.files()
    assert shown(other, listing) == first
    other.close()


def test_a_command_that_is_stopped_has_changed_nothing() -> None:
    if reason := why_not(SHELL):
        pytest.skip(reason)
    env = env_of(cpu_seconds=0.5)
    env.reset(1)
    env.step("echo before > f")
    before = env.files()
    text, _, _, info = env.step("echo after > f; cd /tmp; while :; do :; done")
    assert "was stopped, and has changed nothing: it used more processor time" in text
    assert info["exit_code"] == -1
    assert (env.files(), env.folder) == (before, "/home/agent")
    env.close()


def test_what_would_differ_from_run_to_run_is_fixed(env: TerminalEnv) -> None:
    command = (
        "touch new; date; date +%s%N; echo $RANDOM $$ $SRANDOM $EPOCHSECONDS; mktemp; ls -la --full-time; ls -a /; "
        "head -c 8 /dev/urandom | od -x; shuf -i 1-1000 -n 3; python3 -c 'import time, random, uuid; "
        "print(time.time(), random.random(), uuid.uuid4(), hash(str()), id(time))'; stat -c '%i %y' new .; hostname; "
        "id; find / -xdev -newer /usr 2> /dev/null | head -n 3; git init -q r; cd r; "
        "git commit -q --allow-empty -m x; git log"
    )
    other = env_of()
    other.reset(1)
    first, second = env.step(command)[0], other.step(command)[0]
    assert first == second
    assert "Mon Jan  1 00:00:00 UTC 2024" in first
    assert env.files() == other.files()
    other.close()


# Tasks of the user's


def task_folder(path: Path, check: str) -> None:
    (path / "files").mkdir(parents=True)
    for name, text in {"instruction.txt": "Copy a to b.", "files/a": "x", "check.py": check}.items():
        (path / name).write_text(text)


@needs_shell
def test_tasks_of_a_folder_are_played(tmp_path: Path) -> None:
    task_folder(tmp_path / "one", "def check(files): return ['b' in files and files['b'].data == b'x']")
    task_folder(tmp_path / "two", "def check(files): return [files['b'].data == b'x', 'c' not in files]")
    (tmp_path / "one/files/link").symlink_to("/etc/passwd")
    env = env_of(tasks=str(tmp_path))
    seen = set()
    for seed in range(8):
        assert env.reset(seed).startswith("Copy a to b.")
        seen.add(len(env.task.files))  # type: ignore[union-attr]
        env.step("cp a b")
        assert env.step(SUBMIT)[1] == 1.0
    assert seen == {1, 2}
    env.close()


@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/usr/src", os.W_OK), reason="needs root")
def test_tasks_below_a_folder_of_the_system_are_not_in_the_sandbox() -> None:
    with tempfile.TemporaryDirectory(dir="/usr/src") as folder:
        os.chmod(folder, 0o755)
        task_folder(Path(folder) / "one", "def check(files): return ['check.py' in files]")
        env = TerminalEnv(TerminalEnvConfig(tasks=folder))
        env.reset(1)
        env.step(f"cp {folder}/one/check.py .")
        assert env.step("submit")[1] == 0.0
        env.close()
