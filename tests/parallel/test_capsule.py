"""Failure capsules: what is in them, when they are written, and when they are not."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from ragen import files
from ragen.errors import CapsuleError, ConfigError
from ragen.llm_agent.config.environments import DEFAULT_CAPSULE_DIR, read_config
from ragen.parallel import EnvEngine, EnvFailed, EnvSpec, Settings
from ragen.parallel.episode.journal import Change, EpisodeJournal, JournalTurn
from ragen.parallel.episode.turn import RAGEN, Turn
from ragen.parallel.failures import say_nothing
from ragen.tools import capsule as capsules
from ragen.tools.capsule import CapsuleWriter, read_capsule
from ragen.tools.json_codec import Lost, encode, plain
from support import check_cases


def spec(env_class, env_id=0, tag="Tag", **fields):
    config = check_cases.WalkConfig(**fields)
    return EnvSpec(env_id, 0, tag, f"support.check_cases:{env_class.__name__}", env_class, config, RAGEN)


def engine_of(*specs, capsule_dir, in_lane=False, **settings):
    settings = {"step_timeout": 5.0, "reset_timeout": 20.0, "max_workers": 1, "use_lanes": in_lane, **settings}
    note = CapsuleWriter(capsule_dir).note if capsule_dir else say_nothing
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
    return [read_capsule(path) for path in sorted(folder.iterdir())]


def test_an_exception_leaves_a_capsule_with_the_episode_the_failed_turn_and_the_traceback(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        play(engine_of(spec(check_cases.Raises), capsule_dir=tmp_path))
    (capsule,) = written(tmp_path)
    assert (capsule.kind, capsule.phase) == ("exception", "play")
    assert capsule.what == "ValueError: the rope is too short"
    assert (capsule.env_class, capsule.tag, capsule.env_id) == ("support.check_cases:Raises", "Tag", 0)
    journal = capsule.journal
    assert (journal.seed, journal.options) == (11, {"mode": "val"})
    assert journal.turns == 1 and journal.digest.startswith("at ")
    ((action, (reward, done, digest)),) = journal.entries
    assert action == Turn(("Right",), 10) and (reward, done) == (0.0, False) and digest.startswith("at ")
    assert capsule.failed.action == Turn(("Right",), 10)
    assert "misbehave" in capsule.story and "ValueError: the rope is too short" in capsule.story
    assert str(Path(check_cases.__file__).parents[1]) in capsule.import_path
    assert {"python", "numpy", "ragen", "platform"} <= set(capsule.versions)


def test_the_log_line_of_the_failure_names_the_capsule(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        play(engine_of(spec(check_cases.Raises), capsule_dir=tmp_path))
    (path,) = tmp_path.iterdir()
    lines = [record.getMessage() for record in caplog.records if "raised ValueError" in record.getMessage()]
    assert lines and all(f"ragen replay {path}" in line for line in lines)


def test_the_text_of_the_failure_does_not_name_the_capsule(tmp_path):
    (failed,) = play(engine_of(spec(check_cases.Raises), capsule_dir=tmp_path))
    assert failed.text == "ValueError: the rope is too short" and str(tmp_path) in str(failed.error)


def test_a_failed_reset_leaves_a_capsule_without_turns(tmp_path):
    play(engine_of(spec(check_cases.RaisesInReset), capsule_dir=tmp_path), turns=1)
    (capsule,) = written(tmp_path)
    assert capsule.phase == "reset" and capsule.failed is None
    assert capsule.journal == EpisodeJournal(11, {"mode": "val"})


def test_a_time_out_leaves_a_capsule_with_the_stacks_of_the_hung_worker(tmp_path):
    play(engine_of(spec(check_cases.Hangs), capsule_dir=tmp_path, in_lane=True, step_timeout=0.3))
    (capsule,) = written(tmp_path)
    assert (capsule.kind, capsule.what, capsule.timeout) == ("timeout", "timed out after 0.3 s", 0.3)
    assert "misbehave" in capsule.story
    assert capsule.journal.turns == 1 and capsule.failed is not None


def test_a_crash_leaves_a_capsule_that_says_how_the_process_ended(tmp_path):
    play(engine_of(spec(check_cases.Exits), capsule_dir=tmp_path, in_lane=True))
    (capsule,) = written(tmp_path)
    assert (capsule.kind, capsule.what) == ("crash", "its process exited with code 7")


def test_a_divergence_leaves_a_capsule_with_what_the_journal_held(tmp_path):
    with engine_of(spec(check_cases.TellsEntropy), capsule_dir=tmp_path) as engine:
        engine.reset({0: 3})
        engine.play({0: Turn(("Left",), 5)})
        engine.records[0].in_sync = False  # as after a lost worker
        engine.play({0: Turn(("Left",), 4)})
    (capsule,) = written(tmp_path)
    assert capsule.kind == "divergence" and "at the reset the observation was" in capsule.what
    assert capsule.journal.turns == 1 and capsule.journal.seed == 3


def test_what_was_changed_between_turns_is_in_the_capsule(tmp_path):
    with engine_of(spec(check_cases.Raises), capsule_dir=tmp_path) as engine:
        engine.set_attr([0], "color", (1, 2))
        engine.reset({0: 3})
        engine.call([0], "is_time")
        engine.play({0: Turn(("Left",), 5)})
        engine.set_attr([0], "place", 0)
        engine.play({0: Turn(("Left",), 4)})
    (capsule,) = written(tmp_path)
    assert capsule.journal.settings == {"color": (1, 2)}
    call, turn, change = capsule.journal.entries
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
    play(engine_of(entry.spec, capsule_dir=tmp_path))
    (capsule,) = written(tmp_path)
    assert capsule.config == {"goal": 40, "action_lookup": {1: "Left", 2: "Right"}}
    assert capsule.config_class == "support.check_cases:WalkConfig"


def test_the_second_try_of_a_failed_turn_leaves_no_second_capsule(tmp_path):
    results = play(engine_of(spec(check_cases.Raises), capsule_dir=tmp_path))
    assert isinstance(results[0], EnvFailed)
    assert len(list(tmp_path.iterdir())) == 1


def test_capsules_are_few_however_many_environments_fail(tmp_path):
    specs = [spec(check_cases.Raises, env_id, tag=f"Tag{env_id % 10}") for env_id in range(80)]
    play(engine_of(*specs, capsule_dir=tmp_path))
    assert len(written(tmp_path)) == capsules.MOST


def test_failures_of_one_kind_in_one_tag_leave_a_handful_of_capsules(tmp_path):
    play(engine_of(*[spec(check_cases.Raises, env_id) for env_id in range(9)], capsule_dir=tmp_path))
    assert len(written(tmp_path)) == capsules.MOST_ALIKE


def test_the_folder_is_created_by_the_first_failure_only(tmp_path):
    folder = tmp_path / "deep" / "capsules"
    play(engine_of(spec(check_cases.Walk), capsule_dir=folder))
    assert not folder.exists()
    play(engine_of(spec(check_cases.Raises), capsule_dir=folder))
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_none_turns_capsules_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(play(engine_of(spec(check_cases.Raises), capsule_dir=None))[0], EnvFailed)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told_once_and_harms_nothing(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        results = play(engine_of(spec(check_cases.Raises), capsule_dir=blocked))
    assert isinstance(results[0], EnvFailed) and results[0].text == "ValueError: the rope is too short"
    assert sum("no failure capsule could be written" in record.getMessage() for record in caplog.records) == 1


def test_a_file_that_cannot_be_finished_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError):
        files.write_whole(tmp_path / "capsule.json", "text")
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
    assert np.array_equal(plain(np.eye(2, dtype=np.int8)), np.eye(2))


def test_what_has_no_plain_form_is_kept_as_its_repr(tmp_path):
    play(engine_of(spec(check_cases.Raises, thing=check_cases.Unpicklable()), capsule_dir=tmp_path))
    (capsule,) = written(tmp_path)
    assert capsule.config["goal"] == 30
    assert capsule.config["thing"] == Lost("<support.check_cases.Unpicklable object>")


def test_a_value_that_contains_itself_ends():
    loop = []
    loop.append(loop)
    assert "$lost" in json.dumps(encode(loop))


def test_a_long_observation_is_kept_as_its_digest():
    kept = capsules.shown("x" * 100_000)
    assert kept["characters"] == 100_000 and kept == capsules.shown("x" * 100_000) != capsules.shown("x" * 99_999 + "y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no failure capsule, or a damaged one"),
        ("[]", "has no 'format'"),
        ('{"format": 99, "versions": {"ragen": "7.0"}}', "capsule format 99 .ragen 7.0.*reads format 2"),
        ('{"format": 1, "versions": {"ragen": "0.0"}}', "capsule format 1 .ragen 0.0.*Replay it with the version"),
        ('{"format": 2, "kind": "crash"}', "is a damaged capsule: .* missing .*'what', 'phase'"),
    ],
)
def test_a_file_that_is_no_capsule_of_this_version_is_refused(tmp_path, text, message):
    path = tmp_path / "capsule.json"
    path.write_text(text)
    with pytest.raises(CapsuleError, match=message):
        read_capsule(path)


def manager_config(**keys):
    return {
        "es_manager": {
            **keys,
            "val": {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["T"], "n_groups": [1]}},
        },
        "custom_envs": {"T": {"env_type": "support.check_cases:Walk", "max_actions_per_traj": 5}},
    }


def test_the_manager_reads_where_capsules_go():
    assert read_config(manager_config(), "val").capsule_dir == DEFAULT_CAPSULE_DIR
    assert read_config(manager_config(capsule_dir="here"), "val").capsule_dir == "here"
    assert read_config(manager_config(capsule_dir=None), "val").capsule_dir is None


@pytest.mark.parametrize("value", [3, "", True])
def test_a_capsule_dir_that_is_no_path_is_a_clear_error(value):
    with pytest.raises(ConfigError, match=r"es_manager\.capsule_dir = .*expected the path of a folder, or null"):
        read_config(manager_config(capsule_dir=value), "val")
