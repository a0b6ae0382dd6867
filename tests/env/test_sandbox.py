"""Hostile programs and commands: none escapes, knows, lies with success, or harms another run, and the worker lives."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragen.env.code.config import CodeEnvConfig
from ragen.env.code.env import CodeEnv
from ragen.env.sandbox import inside
from ragen.env.sandbox.host import PROGRAMS, RunLimits, Sandbox
from ragen.env.terminal.config import TerminalEnvConfig
from ragen.env.terminal.env import TerminalEnv
from ragen.errors import SandboxError
from support import hostile_programs
from support.sandboxes import RIGHT, SECRET, UNGUESSABLE, needs_programs, needs_shell


def programs_env() -> CodeEnv:
    env = CodeEnv(CodeEnvConfig(max_tries=1000, cpu_seconds=0.3, memory_mb=96))
    env.reset(1)
    return env


def attempt(env: CodeEnv, program: str) -> tuple[str, float, bool, dict[str, Any]]:
    """Try a program on the problem whose answers cannot be guessed."""
    env.problem, env.passed, env.tries = UNGUESSABLE, (False,) * len(UNGUESSABLE.tests), 0
    return env.step(program)


def processes_of(sandbox: Sandbox) -> set[psutil.Process]:
    return set(psutil.Process(sandbox._process.pid).children(recursive=True))


def assert_nothing_is_left_running(sandbox: Sandbox, before: set[psutil.Process]) -> None:
    """The keeper of the last run ends by itself, after its report."""
    _, left = psutil.wait_procs(processes_of(sandbox) - before, timeout=60)
    assert not left


@pytest.fixture(scope="module")
def envs() -> Iterator[tuple[CodeEnv, TerminalEnv]]:
    code = programs_env()
    shell = TerminalEnv(TerminalEnvConfig(max_steps=10_000, cpu_seconds=0.5, memory_mb=200, disk_mb=8))
    yield code, shell
    code.close()
    shell.close()


PLACES = {name: place for place, name in enumerate(hostile_programs.PROGRAMS)}


@needs_programs
@pytest.mark.parametrize("name", hostile_programs.PROGRAMS)
def test_a_hostile_program_gains_nothing_and_harms_nobody(envs: Any, name: str) -> None:
    env, _ = envs
    sandbox = env.hold_sandbox().value
    before = processes_of(sandbox)
    program = hostile_programs.PROGRAMS[name]
    text, reward, done, info = attempt(env, program)
    assert (reward, done, info["success"], info["passed_tests"]) == (0.0, False, False, 0)
    assert SECRET not in text
    text.encode()
    json.dumps(info)
    if PLACES[name] % 3 == 0:
        assert attempt(env, program) == (text, reward, done, info), "a verdict is the same every time"
    assert attempt(env, RIGHT)[3]["success"], "the next run is not harmed"
    assert env.hold_sandbox().value is sandbox, "the sandbox lives"
    assert_nothing_is_left_running(sandbox, before)


@needs_shell
@needs_programs
def test_a_lock_that_another_run_holds_on_a_file_of_the_system_is_not_seen(envs: Any) -> None:
    programs, shell = envs
    look = (
        "import fcntl, os\ndef f(x):\n    with open(os.__file__) as file:\n        try:\n            {}\n"
        "            return 'FREE'\n        except OSError as error:\n            return error.errno"
    )
    shell.reset(7)
    with open("/usr/bin/awk") as file, open(os.__file__) as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "FREE" in shell.step("exec 8< /usr/bin/awk; flock -n 8 && echo FREE || echo HELD")[0]
        assert "FREE" in attempt(programs, look.format("fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"))[0]
    assert "FREE" in attempt(programs, look.format("fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)"))[0]
    assert "FREE" not in attempt(programs, look.format("fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)"))[0]


@needs_shell
@pytest.mark.parametrize("name", hostile_programs.SHELL)
def test_a_hostile_command_gains_nothing_and_harms_nobody(envs: Any, name: str) -> None:
    _, env = envs
    env.reset(7)
    sandbox = env.hold_sandbox().value
    before = processes_of(sandbox)
    text, reward, done, info = env.step(hostile_programs.SHELL[name])
    assert (reward, done, info["success"]) == (0.0, False, False)
    assert SECRET not in text
    text.encode()
    assert "hello" in env.step("cd; echo hello")[0], "the next run is not harmed"
    assert env.hold_sandbox().value is sandbox, "the sandbox lives"
    assert_nothing_is_left_running(sandbox, before)
    assert not Path("/evil").exists()


@needs_programs
def test_a_run_finds_no_message_of_another(envs: Any) -> None:
    env, _ = envs
    attempt(env, hostile_programs.PROGRAMS["leaves a message for the next run"])
    look = "import os\ndef f(x): return [d for d in ('/tmp', '/dev/shm', '/run', '/') if os.path.exists(d + '/left')]"
    assert "gave []" in attempt(env, look)[0]


@needs_programs
def test_clocks_random_numbers_and_hashes_are_the_same_in_every_sandbox() -> None:
    program = (
        "import random, time, datetime, os, uuid, tempfile, secrets\n"
        "def f(x): return (random.random(), random.Random().random(), time.time(), str(datetime.datetime.now()), "
        "os.urandom(8), str(uuid.uuid4()), hash('a'), secrets.token_hex(4), id(f), os.getpid(), time.ctime(), "
        "time.clock_gettime(0), time.clock_gettime_ns(1), uuid.uuid1().time, os.times(), "
        "os.stat(tempfile.mkstemp()[1]).st_mtime, os.path.getmtime(tempfile.mkdtemp()))"
    )
    seen = set()
    for _ in range(2):
        env = programs_env()
        attempt(env, "def f(x): return 0")
        seen.update(attempt(env, program)[0] for _ in range(2))
        env.close()
    assert len(seen) == 1


@needs_programs
def test_where_bubblewrap_may_not_make_namespaces_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        refusing = Path(folder) / "bwrap"
        refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        refusing.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with pytest.raises(SandboxError, match=r"No permissions to create new namespace.*needs user namespaces"):
            Sandbox(PROGRAMS)


@needs_programs
def test_a_run_that_exceeds_the_limit_of_the_clock_is_stopped_and_the_sandbox_lives() -> None:
    sandbox = Sandbox(PROGRAMS)
    job = {"kind": "program", "source": "while True: pass", "tests": [{"call": "f", "args": []}], "shown_bytes": 100}
    ended = sandbox.run(job, RunLimits(cpu_seconds=600, wall_seconds=0.5))
    assert (ended.stopped, sandbox.alive) == ("waits", True)
    sandbox.close()


@needs_programs
def test_an_environment_whose_sandbox_was_killed_gets_another() -> None:
    env, other = programs_env(), programs_env()
    first = env.hold_sandbox().value
    for process in processes_of(first):
        with suppress(psutil.NoSuchProcess):  # those inside end with the one that holds them
            process.kill()
    first._process.wait()
    assert attempt(env, RIGHT)[3]["success"]
    assert attempt(other, RIGHT)[3]["success"]
    assert env.hold_sandbox().value is other.hold_sandbox().value is not first
    env.close()
    other.close()


@needs_programs
def test_a_sandbox_ends_with_its_process_however_that_ends() -> None:
    script = (
        "import os, signal, psutil\n"
        "from ragen.env.sandbox.host import PROGRAMS, Sandbox\n"
        "sandbox = Sandbox(PROGRAMS)\n"
        "children = psutil.Process().children(recursive=True)\n"
        "print(*[child.pid for child in children], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in ran.stdout.split()]
    assert len(pids) >= 2
    _, left = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=60)
    assert not left


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(10**300), 1.5, "a\n\ud800", b"\0x", [1, [2.0, None]], (1, "a"), {"a": {1: 2}}, {1, 2}, 1 + 2j],
)
def test_a_value_travels_unchanged(value: Any) -> None:
    came = inside.decode(json.loads(json.dumps(inside.encode(value))))
    assert came == value
    assert type(came) is type(value)
