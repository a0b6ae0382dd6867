"""Failure capsules: what is in them, when they are written, and when they are not."""

import dataclasses
import enum
import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from ragen.errors import CapsuleError, ConfigError
from ragen.llm_agent.config.environments import DEFAULT_CAPSULE_DIR, read_config
from ragen.parallel import capsule as capsules
from ragen.parallel.capsule import read_capsule
from ragen.parallel.engine import Engine, EngineSettings
from ragen.parallel.host import ResetOrder
from ragen.parallel.plain import decode, encode
from ragen.parallel.residents import GivenUp
from ragen.parallel.turn import EnvSpec, TurnRequest
from support import check_cases


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Nested:
    colors: tuple = (Color.RED,)
    lookup: dict = dataclasses.field(default_factory=lambda: {1: "one", (2, 3): "two"})
    where: Path = Path("a/b")


def spec(env_class, env_id=0, tag="Tag", **fields):
    config = check_cases.WalkConfig(**fields)
    return EnvSpec(env_id, 0, tag, f"support.check_cases:{env_class.__name__}", env_class, config)


def engine_of(*specs, capsule_dir, in_lane=False, **settings):
    settings = {"step_timeout": 5.0, "reset_timeout": 20.0, "max_workers": 1, **settings}
    engine = Engine(specs, EngineSettings(capsule_dir=capsule_dir and str(capsule_dir), **settings))
    if in_lane:
        (lane,) = engine.lanes(1)
        engine.place({each.env_id: lane for each in specs})
    return engine


def play(engine, turns=3, seed=11, action="Right"):
    """Play an episode of every environment until turns are over or it has failed; what the last turn gave."""
    env_ids = [each.env_id for each in engine.specs()]
    engine.reset([ResetOrder(env_id, seed, "val") for env_id in env_ids])
    results = []
    for turn in range(turns):
        requests = [TurnRequest(env_id, turn, (action,), 10) for env_id in env_ids]
        results = engine.play(requests)
        for request, result in zip(requests, results, strict=True):
            if not isinstance(result, GivenUp):
                engine.commit(request, result)
        if any(isinstance(result, GivenUp) for result in results):
            break
    engine.close()
    return results


def written(folder):
    return [read_capsule(path) for path in sorted(folder.iterdir())]


def test_an_exception_leaves_a_capsule_with_the_episode_the_failed_turn_and_the_traceback(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        play(engine_of(spec(check_cases.Raises), capsule_dir=tmp_path))
    (capsule,) = written(tmp_path)
    assert (capsule.kind, capsule.phase) == ("exception", "play")
    assert capsule.what == "ValueError: the rope is too short"
    assert (capsule.env_class, capsule.tag, capsule.env_id) == ("support.check_cases:Raises", "Tag", 0)
    assert (capsule.seed, capsule.mode) == (11, "val")
    assert len(capsule.turns) == 1
    assert capsule.turns[0].actions == ("Right",) and capsule.turns[0].actions_left == 10
    assert capsule.turns[0].digest.startswith("at ") and capsule.first.startswith("at ")
    assert capsule.failed.actions == ("Right",)
    assert "misbehave" in capsule.traceback and "ValueError: the rope is too short" in capsule.traceback
    assert str(Path(check_cases.__file__).parents[1]) in capsule.import_path
    assert {"python", "numpy", "ragen", "platform"} <= set(capsule.versions)


def test_the_log_line_of_the_failure_names_the_capsule(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        play(engine_of(spec(check_cases.Raises), capsule_dir=tmp_path))
    (path,) = tmp_path.iterdir()
    lines = [record.getMessage() for record in caplog.records if "raised ValueError" in record.getMessage()]
    assert lines and all(f"python -m ragen.parallel.replay {path}" in line for line in lines)


def test_the_info_of_the_turn_does_not_name_the_capsule(tmp_path):
    engine = engine_of(spec(check_cases.Raises), capsule_dir=tmp_path)
    (given_up,) = play(engine)
    result = engine.give_up_result(TurnRequest(0, 1, (), 1), given_up)
    assert result.info == {"env_error": "ValueError: the rope is too short"}


def test_a_failed_reset_leaves_a_capsule_without_turns(tmp_path):
    play(engine_of(spec(check_cases.RaisesInReset), capsule_dir=tmp_path), turns=1)
    (capsule,) = written(tmp_path)
    assert (capsule.phase, capsule.seed, capsule.mode, capsule.first) == ("reset", 11, "val", None)
    assert capsule.turns == () and capsule.failed is None


def test_a_time_out_leaves_a_capsule_with_the_stacks_of_the_hung_worker(tmp_path):
    play(engine_of(spec(check_cases.Hangs), capsule_dir=tmp_path, in_lane=True, step_timeout=0.3))
    (capsule,) = written(tmp_path)
    assert (capsule.kind, capsule.what, capsule.timeout) == ("timeout", "timed out after 0.3 s", 0.3)
    assert "misbehave" in capsule.stacks
    assert len(capsule.turns) == 1 and capsule.failed is not None


def test_a_crash_leaves_a_capsule_that_says_how_the_process_ended(tmp_path):
    play(engine_of(spec(check_cases.Exits), capsule_dir=tmp_path, in_lane=True))
    (capsule,) = written(tmp_path)
    assert (capsule.kind, capsule.what) == ("crash", "its process exited with code 7")


def test_a_divergence_leaves_a_capsule_with_what_the_journal_held(tmp_path):
    engine = engine_of(spec(check_cases.TellsEntropy), capsule_dir=tmp_path)
    engine.reset([ResetOrder(0, 3, "train")])
    request = TurnRequest(0, 0, ("Left",), 5)
    engine.commit(request, engine.play([request])[0])
    engine._residents[0].live = False  # as after a lost worker
    engine.play([TurnRequest(0, 1, ("Left",), 4)])
    engine.close()
    (capsule,) = written(tmp_path)
    assert capsule.kind == "divergence" and "at the reset the observation was" in capsule.what
    assert len(capsule.turns) == 1 and capsule.seed == 3


def test_the_second_try_of_a_failed_turn_leaves_no_second_capsule(tmp_path):
    results = play(engine_of(spec(check_cases.Raises), capsule_dir=tmp_path))
    assert isinstance(results[0], GivenUp)
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
    assert isinstance(play(engine_of(spec(check_cases.Raises), capsule_dir=None))[0], GivenUp)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told_once_and_harms_nothing(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        results = play(engine_of(spec(check_cases.Raises), capsule_dir=blocked))
    assert isinstance(results[0], GivenUp) and results[0].text == "ValueError: the rope is too short"
    assert sum("no failure capsule could be written" in record.getMessage() for record in caplog.records) == 1


def test_a_file_that_cannot_be_finished_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capsules.os, "replace", full)
    with pytest.raises(OSError):
        capsules.write_whole(tmp_path / "capsule.json", "text")
    assert not list(tmp_path.iterdir())


def test_a_configuration_becomes_plain_data_and_comes_back():
    config = check_cases.WalkConfig(
        spot=(4, 5), thing=[Nested(), {"a": None}, {1, 2}, b"\0x", np.float32(0.5), math.inf]
    )
    data = json.loads(json.dumps(encode(config)))
    back = decode(data)
    assert back == config and type(back.spot) is tuple and back.action_lookup == {1: "Left", 2: "Right"}
    assert np.array_equal(decode(json.loads(json.dumps(encode(np.eye(2, dtype=np.int8))))), np.eye(2))


def test_a_field_that_was_added_later_gets_its_default():
    data = encode(check_cases.WalkConfig(goal=5))
    del data["state"]["fails_at"]
    assert decode(data) == check_cases.WalkConfig(goal=5)


def test_what_has_no_plain_form_is_kept_as_its_repr_and_says_so_when_it_is_wanted_back(tmp_path):
    play(engine_of(spec(check_cases.Raises, thing=check_cases.Unpicklable()), capsule_dir=tmp_path))
    (capsule,) = written(tmp_path)
    with pytest.raises(CapsuleError, match=r"could not be kept as plain data: <unlocked _thread\.lock"):
        decode(capsule.config)


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
        ('{"format": 99, "versions": {"ragen": "7.0"}}', "capsule format 99 .ragen 7.0.*reads format 1"),
        ('{"format": 1, "kind": "crash"}', "it lacks what, phase"),
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
    assert read_config(manager_config(), "val").engine.capsule_dir == DEFAULT_CAPSULE_DIR
    assert read_config(manager_config(capsule_dir="here"), "val").engine.capsule_dir == "here"
    assert read_config(manager_config(capsule_dir=None), "val").engine.capsule_dir is None


@pytest.mark.parametrize("value", [3, "", True])
def test_a_capsule_dir_that_is_no_path_is_a_clear_error(value):
    with pytest.raises(ConfigError, match=r"es_manager\.capsule_dir = .*expected the path of a folder, or null"):
        read_config(manager_config(capsule_dir=value), "val")
