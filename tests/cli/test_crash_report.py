"""Crash reports: what a failure leaves on disk, whether it happens again, and what a file cannot have a program do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envlanes import Engine, EnvFailed, EnvSpec, Settings
from envlanes.ragen.journal import JournalFile, packed, read_journal
from envlanes.ragen.turn import TEXT, Turn
from ragen.commands import REFUSED
from ragen.errors import ConfigError
from ragen.tools import crash_report
from ragen.tools import play as command
from ragen.tools.crash_report import CrashReportWriter
from ragen.tools.replay import AGAIN, AS_RECORDED, DIFFERENT
from support import check_cases as cases

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"


def spec(env_class, env_id=0, tag="Tag", **fields):
    config = cases.WalkConfig(**fields)
    return EnvSpec(env_id, 0, tag, f"support.check_cases:{env_class.__name__}", TEXT, env_class, config)


def engine_of(*specs, folder, in_lane=False, **settings):
    settings = {"step_timeout": 5.0, "reset_timeout": 20.0, "max_workers": 1, "use_lanes": in_lane, **settings}
    return Engine(specs, Settings(**settings), on_failure=CrashReportWriter(folder).note)


def play(engine, turns=3, seed=11):
    """Play an episode of every environment until turns are over or one has failed; what the last turn gave."""
    with engine:
        env_ids = list(engine.records)
        results = engine.reset(dict.fromkeys(env_ids, seed), {"mode": "val"})
        for _ in range(turns):
            results = engine.play({env_id: Turn(("Right",), 10) for env_id in env_ids})
            if any(isinstance(result, EnvFailed) for result in results.values()):
                break
    return list(results.values())


def report_of(folder, env_class=cases.Raises, in_lane=False, timeout=5.0, **fields):
    """Let an environment fail; the path of its report."""
    play(engine_of(spec(env_class, **fields), folder=folder, in_lane=in_lane, step_timeout=timeout))
    (path,) = folder.iterdir()
    return path


def changed(path, failed=None, last=None, drop=0, **about):
    """The report with parts of it changed: of what it is about, of the failure, of the last event."""
    before, events = read_journal(path)
    events = events[: len(events) - drop]
    events[-1] = {**events[-1], **(last or {})}
    if failed is not None or drop:
        events[-1]["failed"] = {**read_journal(path)[1][-1]["failed"], **(failed or {})}
    path.unlink()
    with JournalFile(path, {**before, **about}) as file:
        file.write(packed(event) for event in events)
    return path


def run(path, *options, env=None):
    """Replay a report of the environment that it names, which is none of the installed ones."""
    try:
        env = env or read_journal(path)[0]["env_type"]
    except (ConfigError, LookupError):
        env = "bandit"
    return command.main([str(env), "--replay", str(path), *map(str, options)])


@pytest.mark.parametrize(
    ("env_class", "in_lane", "kind", "what", "turns"),
    [
        (cases.Raises, False, "exception", "ValueError: the rope is too short", 1),
        (cases.RaisesInReset, False, "exception", "KeyError", 0),
        (cases.Hangs, True, "timeout", "timed out after 0.3 s", 1),
        (cases.Exits, True, "crash", "its process exited with code 7", 1),
        (cases.Killed, True, "crash", "its process was killed by SIGSEGV", 1),
    ],
)
def test_a_failure_is_written_down_once_and_happens_again(tmp_path, env_class, in_lane, kind, what, turns):
    path = report_of(tmp_path, env_class, in_lane, 0.3 if kind == "timeout" else 5.0)
    about, events = read_journal(path)
    failed = events[-1]["failed"]
    assert failed["kind"] == kind and failed["what"].startswith(what)
    assert about["env_type"] == f"support.check_cases:{env_class.__name__}"
    assert events[0]["asked"] == (11, {"mode": "val"}) and len(events) == turns + 1 + (turns > 0)
    assert run(path) == AGAIN


def test_what_was_changed_between_turns_is_written_and_done_again(tmp_path):
    with engine_of(spec(cases.Raises), folder=tmp_path) as engine:
        engine.set_attr([0], "color", (1, 2))
        engine.reset({0: 3})
        engine.play({0: Turn(("Left",), 5)})
        engine.set_attr([0], "place", 0)
        engine.play({0: Turn(("Left",), 4)})
    (path,) = tmp_path.iterdir()
    about, events = read_journal(path)
    assert about["settings"] == {"color": {"$tuple": [1, 2]}} or about["settings"] == {"color": (1, 2)}
    assert events[2] == {"turn": 1, "call": ("place", (0,), {}, True)}
    assert run(path) == AGAIN


def test_a_failure_that_has_gone_and_another_one_are_told_from_one_that_stays(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    path = report_of(tmp_path / "reports", cases.RaisesWhileAFlagIsThere, flag=str(flag))
    assert run(path, "--path", tmp_path) == AGAIN
    flag.unlink()
    assert run(path) == AS_RECORDED
    assert run(changed(report_of(tmp_path / "others"), failed={"what": "KeyError: 3"})) == DIFFERENT


def test_the_debugger_opens_where_the_exception_was_raised(tmp_path):
    words = ["play", "support.check_cases:Raises", "--replay", report_of(tmp_path), "--pdb"]
    done = subprocess.run(
        [sys.executable, "-m", "ragen", *map(str, words)],
        input="p self.steps\nq\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/engine"},
    )
    assert done.returncode == AGAIN and "(Pdb) 2\n" in done.stdout, done.stderr


def test_reports_are_few_however_many_environments_fail(tmp_path):
    specs = [spec(cases.Raises, env_id, tag=f"Tag{env_id % 10}") for env_id in range(80)]
    play(engine_of(*specs, folder=tmp_path))
    assert len(list(tmp_path.iterdir())) == crash_report.MOST
    assert "60 more" in crash_report.count_reports(tmp_path)


def test_a_folder_that_cannot_be_written_harms_nothing(tmp_path):
    (blocked := tmp_path / "file").write_text("not a folder")
    (failed,) = play(engine_of(spec(cases.Raises), folder=blocked))
    assert isinstance(failed, EnvFailed) and failed.text == "ValueError: the rope is too short"


# A crash report is data: what it cannot have this process do


@pytest.mark.parametrize("env_type", ["subprocess:Popen", "os:system", "lying:Env", "gone:Maze", None, 3])
def test_what_only_a_report_names_is_not_imported(tmp_path, monkeypatch, env_type):
    monkeypatch.syspath_prepend(tmp_path)
    marker = tmp_path / "marker"
    (tmp_path / "lying.py").write_text(f"open({str(marker)!r}, 'w')")
    path = changed(report_of(tmp_path / "reports"), env_type=env_type, config={"args": ["touch", str(marker)]})
    assert command.main(["--replay", str(path)]) == REFUSED and not marker.exists()


def test_installed_environments_need_no_name(tmp_path):
    path = changed(report_of(tmp_path), env_type="bandit", config={})
    assert command.main(["--replay", str(path)]) == DIFFERENT


@pytest.mark.parametrize("form", ["{}/tasks", "tasks", "./tasks/../tasks", "~/tasks", "file://{}/tasks", "{}/link"])
def test_files_that_only_a_report_names_are_not_run(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "tasks")
    task = tmp_path / "tasks" / "one"
    (task / "files").mkdir(parents=True)
    (task / "instruction.txt").write_text("go")
    (task / "check.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef check(files): return [False]\n")
    config = {"tasks": form.format(tmp_path)}
    evil = {"env_type": "terminal", "config": config}
    path = changed(report_of(tmp_path / "reports"), **evil)
    assert run(path) == REFUSED and not (tmp_path / "ran").exists()


def test_a_report_cannot_write_to_the_terminal_as_it_likes(tmp_path, capsys):
    evil = "\x1b]0;owned\x07\x9b2J"
    path = changed(report_of(tmp_path), failed=dict.fromkeys(("what", "kind", "phase"), evil), written=evil, tag=evil)
    assert run(path) == DIFFERENT
    assert not {"\x1b", "\x07", "\x9b"} & set(capsys.readouterr().out)


@pytest.mark.parametrize(
    "change",
    [
        {"failed": {"timeout": "soon"}},
        {"last": {"failed": 3}},
        {"last": {"asked": 3}},
        {"last": {"asked": {"lost": "a handle"}}},
        {"last": {"call": ("__init__", (1,), {}, False)}},
        {"last": {"turn": None}},
        {"config": {"lost": "a handle"}},
        {"config": {"no_such_field": 1}},
        {"settings": 3},
        {"versions": None},
    ],
    ids=repr,
)
def test_a_field_of_another_kind_is_refused(tmp_path, change):
    assert run(changed(report_of(tmp_path), **change)) == REFUSED


@pytest.mark.parametrize(
    "text", ["", "{", "[]\n", '{"journal": 99, "about": {}}\n', '{"journal": 1, "about": {}}\n', "[" * 100_000]
)
def test_a_file_that_is_no_report_of_this_version_is_refused(tmp_path, text):
    (path := tmp_path / "report.jsonl").write_text(text)
    assert run(path) == run(tmp_path / "none.jsonl") == REFUSED
