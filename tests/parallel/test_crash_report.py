"""Crash reports: what is in them, when they are written, and when they are not."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from envlanes import EnvEngine, EnvFailed, EnvSpec, Settings
from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.turn import RAGEN, Turn
from envlanes.failures import say_nothing
from ragen import files
from ragen.errors import ConfigError, CrashReportError
from ragen.llm_agent.config.environments import DEFAULT_CRASH_REPORT_DIR, read_config
from ragen.tools import crash_report
from ragen.tools.crash_report import CrashReportWriter, read_crash_report
from ragen.tools.json_codec import Lost, encode, plain, read
from support import check_cases


def spec(env_class, env_id=0, tag="Tag", **fields):
    config = check_cases.WalkConfig(**fields)
    return EnvSpec(env_id, 0, tag, f"support.check_cases:{env_class.__name__}", env_class, config, RAGEN)


def engine_of(*specs, crash_report_dir, in_lane=False, **settings):
    settings = {"step_timeout": 5.0, "reset_timeout": 20.0, "max_workers": 1, "use_lanes": in_lane, **settings}
    note = CrashReportWriter(crash_report_dir).note if crash_report_dir else say_nothing
    return EnvEngine(specs, Settings(**settings), on_failure=note)


def play(engine, turns=3, seed=11, action="Right"):
    """Play an episode of every environment until turns are over or one has failed; what the last turn gave."""
    with engine:
        env_ids = [each.env_id for each in engine.specs()]
        results = engine.reset(dict.fromkeys(env_ids, seed), {"mode": "val"})
        for _ in range(turns):
            results = engine.play({env_id: Turn((action,), 10) for env_id in env_ids})
            if any(isinstance(result, EnvFailed) for result in results.values()):
                break
    return list(results.values())


def written(folder):
    return [read_crash_report(path) for path in sorted(folder.iterdir())]


def test_an_exception_leaves_a_crash_report_with_the_episode_the_failed_turn_and_the_traceback(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        play(engine_of(spec(check_cases.Raises), crash_report_dir=tmp_path))
    (report,) = written(tmp_path)
    assert (report.kind, report.phase) == ("exception", "play")
    assert report.what == "ValueError: the rope is too short"
    assert (report.env_class, report.tag, report.env_id) == ("support.check_cases:Raises", "Tag", 0)
    journal = report.journal
    assert (journal.seed, journal.options) == (11, {"mode": "val"})
    assert journal.turns == 1 and journal.digest.startswith("at ")
    ((action, (reward, done, digest)),) = journal.entries
    assert action == Turn(("Right",), 10) and (reward, done) == (0.0, False) and digest.startswith("at ")
    assert report.failed.action == Turn(("Right",), 10)
    assert "misbehave" in report.story and "ValueError: the rope is too short" in report.story
    assert str(Path(check_cases.__file__).parents[1]) in report.import_path
    assert {"python", "numpy", "ragen", "platform"} <= set(report.versions)


def test_the_log_line_of_the_failure_names_the_crash_report(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        play(engine_of(spec(check_cases.Raises), crash_report_dir=tmp_path))
    (path,) = tmp_path.iterdir()
    lines = [record.getMessage() for record in caplog.records if "raised ValueError" in record.getMessage()]
    assert lines and all(f"ragen replay {path}" in line for line in lines)


def test_the_text_of_the_failure_does_not_name_the_crash_report(tmp_path):
    (failed,) = play(engine_of(spec(check_cases.Raises), crash_report_dir=tmp_path))
    assert failed.text == "ValueError: the rope is too short" and str(tmp_path) in str(failed.error)


def test_a_failed_reset_leaves_a_crash_report_without_turns(tmp_path):
    play(engine_of(spec(check_cases.RaisesInReset), crash_report_dir=tmp_path), turns=1)
    (report,) = written(tmp_path)
    assert report.phase == "reset" and report.failed is None
    assert report.journal == EpisodeJournal(11, {"mode": "val"})


def test_a_time_out_leaves_a_crash_report_with_the_stacks_of_the_hung_worker(tmp_path):
    play(engine_of(spec(check_cases.Hangs), crash_report_dir=tmp_path, in_lane=True, step_timeout=0.3))
    (report,) = written(tmp_path)
    assert (report.kind, report.what, report.timeout) == ("timeout", "timed out after 0.3 s", 0.3)
    assert "misbehave" in report.story
    assert report.journal.turns == 1 and report.failed is not None


def test_a_crash_leaves_a_crash_report_that_says_how_the_process_ended(tmp_path):
    play(engine_of(spec(check_cases.Exits), crash_report_dir=tmp_path, in_lane=True))
    (report,) = written(tmp_path)
    assert (report.kind, report.what) == ("crash", "its process exited with code 7")


def test_a_divergence_leaves_a_crash_report_with_what_the_journal_held(tmp_path):
    with engine_of(spec(check_cases.TellsEntropy), crash_report_dir=tmp_path) as engine:
        engine.reset({0: 3})
        engine.play({0: Turn(("Left",), 5)})
        engine.records[0].in_sync = False  # as after a lost worker
        engine.play({0: Turn(("Left",), 4)})
    (report,) = written(tmp_path)
    assert report.kind == "divergence" and "at the reset the observation was" in report.what
    assert report.journal.turns == 1 and report.journal.seed == 3


def test_what_was_changed_between_turns_is_in_the_crash_report(tmp_path):
    with engine_of(spec(check_cases.Raises), crash_report_dir=tmp_path) as engine:
        engine.set_attr([0], "color", (1, 2))
        engine.reset({0: 3})
        engine.call([0], "is_time")
        engine.play({0: Turn(("Left",), 5)})
        engine.set_attr([0], "place", 0)
        engine.play({0: Turn(("Left",), 4)})
    (report,) = written(tmp_path)
    assert report.journal.settings == {"color": (1, 2)}
    call, turn, change = report.journal.entries
    assert call == Change("is_time") and type(turn) is JournalTurn
    assert change == Change("place", (0,), is_set=True)


def test_a_configuration_is_kept_as_the_mapping_that_it_was_made_of(tmp_path):
    config = {
        "es_manager": {"val": {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["T"], "n_groups": [1]}}},
        "custom_envs": {
            "T": {
                "env_type": "support.check_cases:Raises",
                "max_actions_per_traj": 5,
                "env_config": {"goal": 40, "action_lookup": {1: "Left", 2: "Right"}},
            }
        },
    }
    (entry,) = read_config(config, "val").entries
    play(engine_of(entry.spec, crash_report_dir=tmp_path))
    (report,) = written(tmp_path)
    assert report.config == {"goal": 40, "action_lookup": {1: "Left", 2: "Right"}}
    assert report.config_class == "support.check_cases:WalkConfig"


def test_the_second_try_of_a_failed_turn_leaves_no_second_crash_report(tmp_path):
    results = play(engine_of(spec(check_cases.Raises), crash_report_dir=tmp_path))
    assert isinstance(results[0], EnvFailed)
    assert len(list(tmp_path.iterdir())) == 1


def test_crash_reports_are_few_however_many_environments_fail(tmp_path):
    specs = [spec(check_cases.Raises, env_id, tag=f"Tag{env_id % 10}") for env_id in range(80)]
    play(engine_of(*specs, crash_report_dir=tmp_path))
    assert len(written(tmp_path)) == crash_report.MOST


def test_failures_of_one_kind_in_one_tag_leave_a_handful_of_crash_reports(tmp_path):
    play(engine_of(*[spec(check_cases.Raises, env_id) for env_id in range(9)], crash_report_dir=tmp_path))
    assert len(written(tmp_path)) == crash_report.MOST_ALIKE


def test_the_folder_is_created_by_the_first_failure_only(tmp_path):
    folder = tmp_path / "deep" / "crash_reports"
    play(engine_of(spec(check_cases.Walk), crash_report_dir=folder))
    assert not folder.exists()
    play(engine_of(spec(check_cases.Raises), crash_report_dir=folder))
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_none_turns_crash_reports_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(play(engine_of(spec(check_cases.Raises), crash_report_dir=None))[0], EnvFailed)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told_once_and_harms_nothing(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        results = play(engine_of(spec(check_cases.Raises), crash_report_dir=blocked))
    assert isinstance(results[0], EnvFailed) and results[0].text == "ValueError: the rope is too short"
    assert sum("no crash report could be written" in record.getMessage() for record in caplog.records) == 1


def test_a_file_that_cannot_be_finished_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError):
        files.write_whole(tmp_path / "report.json", "text")
    assert not list(tmp_path.iterdir())


def test_plain_values_and_journals_become_plain_data_and_come_back():
    inner = [{1: "one", (2, 3): "two"}, {"a": None}, {1, 2}, b"\0x", math.inf]
    turn = JournalTurn(Turn(("Left",), 3), (0.5, False, "at 3"))
    journal = EpisodeJournal(3, {"mode": "val"}, entries=[turn, Change("place", (4,), is_set=True)], has_begun=True)
    for value in (inner, (4, 5), journal):
        back = plain(value)
        assert back == value and type(back) is type(value)
    assert type(back.entries[0].action) is Turn
    assert plain(np.float32(0.5)) == 0.5
    odd = encode([math.nan, (math.inf,), np.array([-math.inf])])
    assert (
        "NaN" not in json.dumps(odd, allow_nan=False) and repr(read(json.dumps(odd))) == "[nan, (inf,), array([-inf])]"
    )
    assert np.array_equal(plain(np.eye(2, dtype=np.int8)), np.eye(2))


def test_what_has_no_plain_form_is_kept_as_its_repr(tmp_path):
    play(engine_of(spec(check_cases.Raises, thing=check_cases.Unpicklable()), crash_report_dir=tmp_path))
    (report,) = written(tmp_path)
    assert report.config["goal"] == 30
    assert report.config["thing"] == Lost("<support.check_cases.Unpicklable object>")


def test_a_value_that_contains_itself_ends():
    loop = []
    loop.append(loop)
    assert "$lost" in json.dumps(encode(loop))


def test_a_long_observation_is_kept_as_its_digest():
    kept = crash_report.shown("x" * 100_000)
    assert kept["characters"] == 100_000 and kept == crash_report.shown("x" * 100_000) != crash_report.shown(
        "x" * 99_999 + "y"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a crash report, or is damaged"),
        ("[]", "has no 'format'"),
        ('{"format": 99, "versions": {"ragen": "7.0"}}', "report format 99 .ragen 7.0.*reads format 3"),
        ('{"format": 1, "versions": {"ragen": "0.0"}}', "report format 1 .ragen 0.0.*Replay it with the version"),
        ('{"format": 3, "kind": "crash"}', "is a damaged crash report: .* missing .*'what', 'phase'"),
    ],
)
def test_a_file_that_is_no_report_of_this_version_is_refused(tmp_path, text, message):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(CrashReportError, match=message):
        read_crash_report(path)


def manager_config(**keys):
    return {
        "es_manager": {
            **keys,
            "val": {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["T"], "n_groups": [1]}},
        },
        "custom_envs": {"T": {"env_type": "support.check_cases:Walk", "max_actions_per_traj": 5}},
    }


def test_the_manager_reads_where_crash_reports_go():
    assert read_config(manager_config(), "val").crash_report_dir == DEFAULT_CRASH_REPORT_DIR
    assert read_config(manager_config(crash_report_dir="here"), "val").crash_report_dir == "here"
    assert read_config(manager_config(crash_report_dir=None), "val").crash_report_dir is None


@pytest.mark.parametrize("value", [3, "", True])
def test_a_crash_report_dir_that_is_no_path_is_a_clear_error(value):
    with pytest.raises(ConfigError, match=r"es_manager\.crash_report_dir = .*expected the path of a folder, or null"):
        read_config(manager_config(crash_report_dir=value), "val")
