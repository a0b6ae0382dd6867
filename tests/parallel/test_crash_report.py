"""Crash reports: what a failure leaves on disk, whether it happens again, and what a file cannot have a program do."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envlanes import Engine, EnvFailed, EnvSpec, Settings
from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.turn import RAGEN, Turn
from ragen.commands import REFUSED
from ragen.errors import ConfigError, CrashReportError
from ragen.llm_agent.config.environments import DEFAULT_CRASH_REPORT_DIR, read_config
from ragen.tools import crash_report, replay
from ragen.tools.crash_report import CrashReportWriter, read_crash_report
from ragen.tools.json_codec import Lost, plain
from ragen.tools.replay import AGAIN, AS_RECORDED, DIFFERENT
from support import check_cases as cases

ROOT = Path(__file__).resolve().parents[2]


def spec(env_class, env_id=0, tag="Tag", **fields):
    config = cases.WalkConfig(**fields)
    return EnvSpec(env_id, 0, tag, f"support.check_cases:{env_class.__name__}", env_class, config, RAGEN)


def engine_of(*specs, folder, in_lane=False, **settings):
    settings = {"step_timeout": 5.0, "reset_timeout": 20.0, "max_workers": 1, "use_lanes": in_lane, **settings}
    return Engine(specs, Settings(**settings), on_failure=CrashReportWriter(folder).note)


def play(engine, turns=3, seed=11):
    """Play an episode of every environment until turns are over or one has failed; what the last turn gave."""
    with engine:
        env_ids = engine.env_ids
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


def changed(path, **changes):
    """The report with some of its fields changed."""
    path.write_text(dataclasses.replace(read_crash_report(path), **changes).to_json())
    return path


def run(path, *options):
    return replay.main([str(path), *map(str, options)])


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
    report = read_crash_report(path)
    assert report.kind == kind and report.what.startswith(what) and report.env_class.endswith(env_class.__name__)
    assert (report.journal.seed, report.journal.options, report.journal.turns) == (11, {"mode": "val"}, turns)
    assert run(path) == AGAIN


def test_what_was_changed_between_turns_is_written_and_done_again(tmp_path):
    with engine_of(spec(cases.Raises), folder=tmp_path) as engine:
        engine.set_attr([0], "color", (1, 2))
        engine.reset({0: 3})
        engine.play({0: Turn(("Left",), 5)})
        engine.set_attr([0], "place", 0)
        engine.play({0: Turn(("Left",), 4)})
    (path,) = tmp_path.iterdir()
    journal = read_crash_report(path).journal
    assert journal.settings == {"color": (1, 2)} and journal.entries[1] == Change("place", (0,), is_set=True)
    assert run(path) == AGAIN


def test_a_failure_that_has_gone_and_another_one_are_told_from_one_that_stays(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    path = report_of(tmp_path / "reports", cases.RaisesWhileAFlagIsThere, flag=str(flag))
    assert run(path, "--path", tmp_path) == AGAIN
    flag.unlink()
    assert run(path) == AS_RECORDED
    assert run(changed(report_of(tmp_path / "others"), what="KeyError: 3")) == DIFFERENT
    played = JournalTurn(Turn(("Right",), 10), (4, False, "at 99 of 30"))
    (path,) = (tmp_path / "others").iterdir()
    journal = dataclasses.replace(read_crash_report(path).journal, entries=[played])
    assert run(changed(path, journal=journal, failed=None)) == DIFFERENT


def test_the_debugger_opens_where_the_exception_was_raised(tmp_path):
    command = [sys.executable, "-m", "ragen.tools.replay", report_of(tmp_path), "--pdb", "--path", f"{ROOT}/tests"]
    done = subprocess.run(command, input="p self.steps\nq\n", capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == AGAIN and "(Pdb) 2\n" in done.stdout, done.stderr


def test_an_environment_of_the_main_script_is_replayed_from_that_script_alone(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from support import check_cases\n"
        "class Mine(check_cases.Raises):\n    pass\n"
        "if __name__ == '__main__':\n"
        "    from pathlib import Path\n"
        "    from test_crash_report import *\n"
        "    play(engine_of(spec(Mine), folder=Path('reports')))\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/engine:{ROOT}/tests:{Path(__file__).parent}"}
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environ, check=True, timeout=60)
    (path,) = (tmp_path / "reports").iterdir()
    assert run(path) == REFUSED  # the report names it, and the user does not
    assert run(path, "--script", script) == AGAIN


def test_reports_are_few_however_many_environments_fail(tmp_path):
    specs = [spec(cases.Raises, env_id, tag=f"Tag{env_id % 10}") for env_id in range(80)]
    play(engine_of(*specs, folder=tmp_path))
    assert len(list(tmp_path.iterdir())) == crash_report.MOST


def test_a_folder_that_cannot_be_written_harms_nothing(tmp_path):
    (blocked := tmp_path / "file").write_text("not a folder")
    (failed,) = play(engine_of(spec(cases.Raises), folder=blocked))
    assert isinstance(failed, EnvFailed) and failed.text == "ValueError: the rope is too short"


def test_plain_values_and_journals_come_back_and_others_are_named():
    turn = JournalTurn(Turn(("Left",), 3), (0.5, False, "at 3"))
    journal = EpisodeJournal(3, {"mode": "val"}, entries=[turn, Change("place", (4,), is_set=True)], has_begun=True)
    for value in ([{1: "one", (2, 3): "two"}, {"a": None}, {1, 2}, b"\0x", math.inf], (4, 5), journal):
        back = plain(value)
        assert back == value and type(back) is type(value)
    assert np.array_equal(plain(np.eye(2, dtype=np.int8)), np.eye(2))
    assert isinstance(plain(cases.Unpicklable()), Lost)


# A crash report is data: what it cannot have this process do


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"config_class": "support.check_cases:Popen"},
        {"env_class": "subprocess:Popen"},
        {"env_class": "os:system"},
        {"env_class": "support.faulty_envs:subprocess.Popen"},
        {"env_class": "os;system"},
        {"env_class": "gone_for_good.envs:Maze"},
        {"game": "subprocess:Popen"},
        {"game": "support.check_cases:Walk"},
    ],
)
def test_a_class_that_is_no_environment_or_configuration_of_it_is_not_called(tmp_path, monkeypatch, fields):
    monkeypatch.setattr(cases, "Popen", subprocess.Popen, raising=False)
    marker = tmp_path / "marker"
    evil = {"config_class": "subprocess:Popen", "config": {"args": ["touch", str(marker)]}}
    assert run(changed(report_of(tmp_path / "reports"), **{**evil, **fields})) == REFUSED and not marker.exists()


@pytest.mark.parametrize("names_folder", [False, True])
def test_a_module_that_only_the_report_names_is_not_run(tmp_path, monkeypatch, names_folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"lying_{names_folder}"
    (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    fields = {"import_path": (str(tmp_path),)} if names_folder else {}
    path = changed(report_of(tmp_path / "reports"), env_class=f"{name}:Env", **fields)
    assert run(path) == REFUSED and not (tmp_path / "ran").exists()
    assert run(path, "--path", ".") == REFUSED and (tmp_path / "ran").exists()


@pytest.mark.parametrize("form", ["{}/tasks", "tasks", "./tasks/../tasks", "~/tasks", "file://{}/tasks", "{}/link"])
def test_files_that_only_a_report_names_are_not_run(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "tasks")
    task = tmp_path / "tasks" / "one"
    (task / "files").mkdir(parents=True)
    (task / "instruction.txt").write_text("go")
    (task / "check.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef check(files): return [False]\n")
    path = changed(
        report_of(tmp_path / "reports"),
        env_type="terminal",
        env_class="ragen.env.terminal.env:TerminalEnv",
        config_class="ragen.env.terminal.config:TerminalEnvConfig",
        config={"tasks": form.format(tmp_path)},
    )
    assert run(path) == REFUSED and not (tmp_path / "ran").exists()


def test_a_report_cannot_write_to_the_terminal_as_it_likes(tmp_path, capsys):
    fields = dict.fromkeys(("what", "kind", "phase", "written", "tag", "env_type"), "\x1b]0;owned\x07\x9b2J")
    assert run(changed(report_of(tmp_path), **fields)) == DIFFERENT
    assert not {"\x1b", "\x07", "\x9b"} & set(capsys.readouterr().out)


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout": -1},
        {"timeout": "3"},
        {"env_id": True},
        {"what": None},
        {"journal": {}},
        {"failed": "x"},
        {"versions": {"hash_seed": "0; touch x"}},
        {"journal": EpisodeJournal(1, entries=[JournalTurn(Turn(("Left",), 1), 3)], has_begun=True)},
        {"journal": EpisodeJournal(1, entries=[Change("__init__", (1,))], has_begun=True)},
    ],
)
def test_a_field_of_another_kind_is_refused(tmp_path, fields):
    assert run(changed(report_of(tmp_path), **fields)) == REFUSED


FUTURE = json.dumps({"format": 99, "versions": {"ragen": "9.9"}})


@pytest.mark.parametrize("text", ["{", "[]", FUTURE, '{"format": 3, "kind": "crash"}', '{"config": ' + "[" * 100_000])
def test_a_file_that_is_no_report_of_this_version_is_refused(tmp_path, text):
    (path := tmp_path / "report.json").write_text(text)
    with pytest.raises(CrashReportError):
        read_crash_report(path)
    assert run(path) == run(tmp_path / "none.json") == REFUSED


def test_the_manager_reads_where_crash_reports_go():
    train = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["T"], "n_groups": [1]}}
    tags = {"T": {"env_type": "support.check_cases:Walk", "max_actions_per_traj": 5}}

    def folder(**keys):
        return read_config({"es_manager": {**keys, "val": train}, "custom_envs": tags}, "val").crash_report_dir

    assert [folder(), folder(crash_report_dir="here")] == [DEFAULT_CRASH_REPORT_DIR, "here"]
    assert folder(crash_report_dir=None) is None
    for value in (3, "", True):
        with pytest.raises(ConfigError, match="crash_report_dir"):
            folder(crash_report_dir=value)
