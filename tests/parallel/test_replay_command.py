"""``python -m ragen.tools.replay``: failures that happen again, that do not, and that cannot be replayed."""

import dataclasses
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_crash_report import engine_of, play, spec

from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.turn import Turn
from ragen.commands import REFUSED
from ragen.tools import replay
from ragen.tools.crash_report import read_crash_report, versions
from ragen.tools.replay import AGAIN, AS_RECORDED, DIFFERENT
from support import check_cases

ROOT = Path(__file__).resolve().parents[2]


def report_of(folder, env_class, in_lane=False, timeout=5.0, **fields):
    """Let an environment fail; the path of its report."""
    play(engine_of(spec(env_class, **fields), crash_report_dir=folder, in_lane=in_lane, step_timeout=timeout))
    (path,) = folder.iterdir()
    return path


def changed(path, **changes):
    """The report with some of its fields changed."""
    path.write_text(dataclasses.replace(read_crash_report(path), **changes).to_json())
    return path


def with_entries(path, *entries, **changes):
    """The report with these entries in its journal."""
    journal = dataclasses.replace(read_crash_report(path).journal, entries=list(entries))
    return changed(path, journal=journal, **changes)


def run(path, *options):
    return replay.main([str(path), *map(str, options)])


def debug(path, commands, *options):
    """The command under the debugger, as a process of its own whose input are these commands."""
    return subprocess.run(
        [sys.executable, "-m", "ragen.tools.replay", str(path), "--pdb", "--path", f"{ROOT}/tests", *options],
        input=commands,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


def test_an_exception_happens_again_and_every_turn_is_shown(tmp_path, capsys):
    path = report_of(tmp_path, check_cases.Raises)
    assert run(path) == AGAIN
    shown = capsys.readouterr().out
    assert "reset  seed 11, mode 'val'" in shown
    assert "turn 1  actions ('Right',), actions_left 10" in shown
    assert "executed [2], malformed False, reward 0.0, done False" in shown
    assert "misbehave" in shown and "happened again, at turn 2: ValueError: the rope is too short" in shown
    assert "DIFFERS" not in shown and "recorded with" not in shown


def test_a_failed_reset_happens_again(tmp_path, capsys):
    assert run(report_of(tmp_path, check_cases.RaisesInReset)) == AGAIN
    assert "happened again, at the reset: KeyError" in capsys.readouterr().out


def test_a_hang_happens_again_and_is_killed_with_its_stacks_shown(tmp_path, capsys):
    path = report_of(tmp_path, check_cases.Hangs, in_lane=True, timeout=0.3)
    assert run(path) == AGAIN
    assert "misbehave" in capsys.readouterr().out


def test_a_crash_happens_again_without_taking_the_command_down(tmp_path, capsys):
    path = report_of(tmp_path, check_cases.Killed, in_lane=True)
    assert run(path) == AGAIN
    assert "was killed by SIGSEGV" in capsys.readouterr().out


def test_a_failure_that_has_gone_is_told_from_one_that_stays(tmp_path, capsys):
    flag = tmp_path / "flag"
    flag.touch()
    path = report_of(tmp_path / "crash_reports", check_cases.RaisesWhileAFlagIsThere, flag=str(flag))
    assert run(path, "--path", tmp_path) == AGAIN
    flag.unlink()
    assert run(path) == AS_RECORDED
    shown = capsys.readouterr().out
    assert "This is the turn that failed; this time it did not." in shown and "It did not happen again" in shown


def test_results_that_differ_from_the_recorded_ones_are_shown(tmp_path, capsys):
    path = report_of(tmp_path, check_cases.Raises)
    other = JournalTurn(Turn(("Right",), 10), (4, False, "at 99 of 30"))
    assert run(with_entries(path, other, failed=None)) == DIFFERENT
    shown = capsys.readouterr().out
    assert "at turn 1 the observation was 'at 99 of 30' and is now 'at 10 of 30'" in shown
    assert "at turn 1 the reward was 4 and is now 0.0" in shown


def test_another_failure_than_the_recorded_one_is_told(tmp_path, capsys):
    path = changed(report_of(tmp_path, check_cases.Raises), what="KeyError: 3")
    assert run(path) == DIFFERENT
    assert "A different failure happened at turn 2: exception: ValueError" in capsys.readouterr().out


def test_a_divergence_is_reproduced_where_the_replay_differs(tmp_path, capsys):
    path = report_of(tmp_path, check_cases.Raises)
    played = JournalTurn(Turn(("Right",), 10), (0.0, False, "at 3 of 30"))
    assert run(with_entries(path, played, kind="divergence", phase="replay", failed=None)) == AGAIN
    assert "It does not replay:" in capsys.readouterr().out
    assert run(with_entries(path)) == AS_RECORDED


@pytest.mark.parametrize("kind", ["exception", "divergence"])
def test_a_snapshot_that_was_not_restored_is_said_to_be_in_no_report(tmp_path, capsys, kind):
    path = report_of(tmp_path, check_cases.Raises)
    assert run(with_entries(path, kind=kind, phase="load() of a snapshot", failed=None)) == AS_RECORDED
    told = "The failure was in load() of a snapshot, which a crash report does not contain: ragen check"
    assert told in capsys.readouterr().out


def test_what_was_changed_between_turns_is_done_again(tmp_path, capsys):
    with engine_of(spec(check_cases.Raises), crash_report_dir=tmp_path) as engine:
        engine.set_attr([0], "color", "red")
        engine.reset({0: 3})
        engine.play({0: Turn(("Left",), 5)})
        engine.set_attr([0], "place", 0)
        engine.call([0], "no_such_method")
        engine.play({0: Turn(("Left",), 4)})
    (path,) = tmp_path.iterdir()
    assert run(path) == AGAIN
    shown = capsys.readouterr().out
    assert "set  place(0)" in shown and "raised AttributeError" in shown and "DIFFERS" not in shown


def test_a_call_that_takes_the_process_down_happens_again(tmp_path, capsys):
    with engine_of(spec(check_cases.Exits, fails_at=0), crash_report_dir=tmp_path, in_lane=True) as engine:
        engine.reset({0: 3})
        engine.call([0], "misbehave")
    (path,) = tmp_path.iterdir()
    assert read_crash_report(path).failed == Change("misbehave")
    assert run(path) == AGAIN
    assert "happened again, at the call of 'misbehave': its process exited with code 7" in capsys.readouterr().out


def test_an_episode_that_was_not_seeded_begins_with_the_state_of_its_generators(tmp_path, capsys):
    with engine_of(spec(check_cases.RaisesUnseeded), crash_report_dir=tmp_path) as engine:
        engine.reset({0: None})
        engine.play({0: Turn(("Left",), 5)})
        engine.play({0: Turn(("Left",), 4)})
    (path,) = tmp_path.iterdir()
    assert run(path) == AGAIN
    shown = capsys.readouterr().out
    assert "reset  without a seed" in shown and "DIFFERS" not in shown


def test_turn_stops_the_replay_early(tmp_path, capsys):
    path = report_of(tmp_path, check_cases.Raises)
    assert run(path, "--turn", 1) == AS_RECORDED
    shown = capsys.readouterr().out
    assert "turn 1" in shown and "turn 2" not in shown


def test_other_versions_are_told(tmp_path, capsys):
    path = changed(report_of(tmp_path, check_cases.Raises), versions={**versions(), "numpy": "1.0"})
    run(path)
    assert "recorded with numpy 1.0, now" in capsys.readouterr().out


def test_an_environment_whose_module_is_missing_is_a_clear_error(tmp_path, capsys):
    path = changed(report_of(tmp_path, check_cases.Raises), env_class="gone_for_good.envs:Maze")
    assert run(path) == REFUSED
    assert "cannot import 'gone_for_good.envs:Maze'" in (error := capsys.readouterr().err) and "PYTHONPATH" in error


def test_an_unreadable_crash_report_and_one_of_another_format_are_clear_errors(tmp_path, capsys):
    assert run(tmp_path / "none.json") == REFUSED
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "future.json").write_text(json.dumps({"format": 99, "versions": {"ragen": "9.9"}}))
    assert run(tmp_path / "future.json") == REFUSED
    assert "ragen 9.9" in capsys.readouterr().err


def test_a_configuration_that_was_no_plain_data_is_a_clear_error(tmp_path, capsys):
    path = report_of(tmp_path, check_cases.Raises, thing=check_cases.Unpicklable())
    assert run(path) == REFUSED
    assert "could not be stored as plain data" in capsys.readouterr().err


def test_an_environment_of_the_main_script_is_replayed_from_that_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from support import check_cases\n"
        "class Mine(check_cases.Raises):\n    pass\n"
        "if __name__ == '__main__':\n"
        "    from test_crash_report import *\n"
        "    play(engine_of(spec(Mine), crash_report_dir='crash_reports'))\n"
    )
    paths = f"{ROOT}:{ROOT}/tests:{Path(__file__).parent}"
    environ = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environ, check=True, timeout=60)
    (path,) = (tmp_path / "crash_reports").iterdir()
    assert read_crash_report(path).env_class == "__main__:Mine"
    assert run(path, "--script", script) == AGAIN
    script.unlink()
    assert run(path, "--script", script) == REFUSED


def test_the_debugger_opens_where_the_exception_was_raised(tmp_path):
    path = report_of(tmp_path, check_cases.Raises)
    done = debug(path, "p self.steps\nq\n")
    assert done.returncode == AGAIN, done.stderr
    assert "-> raise ValueError" in done.stdout and "(Pdb) 2\n" in done.stdout


def test_the_debugger_enters_the_step_that_took_the_process_down(tmp_path):
    path = report_of(tmp_path, check_cases.Exits, in_lane=True)
    done = debug(path, "p 'before', self.steps, action\nq\n")
    assert done.returncode == DIFFERENT, done.stderr
    assert "('before', 1, 2)" in done.stdout


def test_the_debugger_enters_the_turn_that_is_asked_for_and_the_episode_goes_on_from_there(tmp_path):
    path = report_of(tmp_path, check_cases.Raises)
    done = debug(path, "p 'before', self.steps\nc\nq\n", "--turn", "1")
    assert "('before', 0)" in done.stdout
    assert done.returncode == AGAIN and "happened again, at turn 2" in done.stdout


# A crash report is data: what it cannot have this process do


def ran(marker):
    """Fields of a report that would create this file if the class that they name were called."""
    return {"config_class": "subprocess:Popen", "config": {"args": ["touch", str(marker)]}}


def test_a_configuration_class_that_is_not_the_environments_own_is_not_called(tmp_path, capsys):
    marker = tmp_path / "marker"
    path = changed(report_of(tmp_path / "reports", check_cases.Raises), **ran(marker))
    assert run(path) == REFUSED
    assert "'subprocess:Popen' is not called" in capsys.readouterr().err and not marker.exists()


def test_a_class_that_the_environments_module_only_imports_is_not_called(tmp_path, capsys, monkeypatch):
    marker = tmp_path / "marker"
    monkeypatch.setattr(check_cases, "Popen", subprocess.Popen, raising=False)
    fields = {**ran(marker), "config_class": "support.check_cases:Popen"}
    assert run(changed(report_of(tmp_path / "reports", check_cases.Raises), **fields)) == REFUSED
    assert "is not a class of that module" in capsys.readouterr().err and not marker.exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("subprocess:Popen", "is not an environment"),
        ("os:system", "is not a class of that module"),
        ("support.faulty_envs:subprocess.Popen", "is not a class of that module"),
        ("os;system", "is not a 'package.module:Class'"),
    ],
)
def test_what_is_no_environment_is_not_built(tmp_path, capsys, name, why):
    marker = tmp_path / "marker"
    path = changed(report_of(tmp_path / "reports", check_cases.Raises), **ran(marker), env_class=name)
    assert run(path) == REFUSED
    assert why in capsys.readouterr().err and not marker.exists()


@pytest.mark.parametrize("game", ["subprocess:Popen", "support.check_cases:Walk"])
def test_what_is_no_kind_of_game_is_not_called(tmp_path, capsys, game):
    assert run(changed(report_of(tmp_path, check_cases.Raises), game=game)) == REFUSED
    assert "is not a kind of game of this package" in capsys.readouterr().err


def test_a_script_that_only_the_report_names_is_not_run(tmp_path, capsys):
    marker = tmp_path / "marker"
    script = tmp_path / "script of mine.py"
    script.write_text(f"open({str(marker)!r}, 'w')")
    path = changed(report_of(tmp_path / "reports", check_cases.Raises), env_class="__main__:Mine", script=str(script))
    assert run(path) == REFUSED
    assert f"if you trust it: --script '{script}'" in capsys.readouterr().err and not marker.exists()
    assert run(path, "--script", script) == REFUSED
    assert marker.exists(), "the user has named it"


@pytest.mark.parametrize("form", ["{}/tasks", "tasks", "./tasks/../tasks", "~/tasks", "file://{}/tasks", "{}/link"])
def test_files_that_only_a_report_names_are_not_run(tmp_path, capsys, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "tasks")
    task = tmp_path / "tasks" / "one"
    (task / "files").mkdir(parents=True)
    (task / "instruction.txt").write_text("go")
    (task / "check.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef check(files): return [False]\n")
    path = changed(
        report_of(tmp_path / "reports", check_cases.Raises),
        env_type="terminal",
        env_class="ragen.env.terminal.env:TerminalEnv",
        config_class="ragen.env.terminal.config:TerminalEnvConfig",
        config={"tasks": form.format(tmp_path)},
    )
    assert run(path) == REFUSED and not (tmp_path / "ran").exists()
    assert f"--path {tmp_path / 'tasks'}" in capsys.readouterr().err
    assert run(path, "--path", tmp_path / "elsewhere") == REFUSED


def test_a_module_of_the_current_folder_is_run_only_where_the_user_names_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lying_about.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    path = changed(report_of(tmp_path / "reports", check_cases.Raises), env_class="lying_about:Env")
    assert run(path) == REFUSED and not (tmp_path / "ran").exists()
    assert f"--path {tmp_path}" in capsys.readouterr().err
    assert run(path, "--path", ".") == REFUSED and (tmp_path / "ran").exists()


def test_a_folder_that_only_the_report_names_is_not_imported_from(tmp_path, capsys):
    marker = tmp_path / "marker"
    (tmp_path / "strangers_env.py").write_text(f"open({str(marker)!r}, 'w')")
    path = report_of(tmp_path / "reports", check_cases.Raises)
    changed(path, env_class="strangers_env:Env", import_path=(str(tmp_path),))
    assert run(path) == REFUSED
    assert f"the report says: --path {tmp_path}" in capsys.readouterr().err and not marker.exists()


def test_what_is_about_to_be_imported_is_said_before_it_is(tmp_path, capsys):
    path = report_of(tmp_path / "reports", check_cases.Raises)
    changed(path, env_class="strangers_env:Env")
    assert run(path, "--dry-run") == AS_RECORDED
    shown = capsys.readouterr().out
    assert "importing module 'strangers_env' (not found) for its class 'Env'" in shown and "'goal': 30" in shown
    assert run(changed(path, env_class="support.check_cases:Raises"), "--dry-run") == AS_RECORDED
    shown = capsys.readouterr().out
    assert f"importing module 'support.check_cases' ({ROOT / 'tests' / 'support'})" in shown and "turn 1" not in shown


def test_a_report_cannot_write_to_the_terminal_as_it_likes(tmp_path, capsys):
    evil = "\x1b]0;owned\x07\x9b2J"
    fields = dict.fromkeys(("what", "kind", "phase", "written", "tag", "env_type"), evil)
    path = changed(report_of(tmp_path, check_cases.Raises), **fields, versions={**versions(), "numpy": evil})
    assert run(path) == DIFFERENT
    shown = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07\\x9b2J" in shown and not {"\x1b", "\x07", "\x9b"} & set(shown)


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout": math.inf},
        {"timeout": -1},
        {"timeout": "3"},
        {"env_id": True},
        {"what": None},
        {"journal": {}},
        {"failed": "x"},
        {"versions": {"hash_seed": "0; touch x"}},
        {"journal": EpisodeJournal(1, entries=[("turn", ())], has_begun=True)},
        {"journal": EpisodeJournal(1, entries=[JournalTurn(Turn(("Left",), 1), 3)], has_begun=True)},
        {"journal": EpisodeJournal(1, entries=[Change("__init__", (1,))], has_begun=True)},
    ],
)
def test_a_field_of_another_kind_is_a_clear_error(tmp_path, capsys, fields):
    path = changed(report_of(tmp_path, check_cases.Raises), **fields)
    assert run(path) == REFUSED
    assert "is a damaged crash report" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["[" * 100_000, '{"$array": ["x"], "dtype": "O"}', '{"$bytes": 3}'])
def test_a_value_that_cannot_be_read_is_a_clear_error(tmp_path, capsys, value):
    path = report_of(tmp_path, check_cases.Raises)
    path.write_text(path.read_text().replace('"config": {', f'"config": {value}, "other": {{'))
    assert run(path) == REFUSED
    assert "crash report" in capsys.readouterr().err


def test_the_log_line_has_the_options_that_find_the_class_again(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        report_of(tmp_path / "two words", check_cases.Raises)
    assert f"{ROOT}/tests]" in caplog.text and "ragen replay '/" in caplog.text
