"""``ragen score``: a run scored again, with its replies as they are."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ragen.llm_agent.evaluation.scanners import states_shown
from ragen.llm_agent.evaluation.score import main
from ragen.llm_agent.rollout import command
from ragen.llm_agent.rollout.rollout_file import read_records

GAMES = [
    "agent_proxy.max_turn=4",
    "actor.scripted.malformed=0.4",
    "es_manager.use_multiprocessing=false",
    "es_manager.val.env_groups=8",
    "es_manager.val.group_size=2",
    "es_manager.val.env_configs.tags=[SimpleSokoban,FrozenLake,Countdown,Bandit]",
    "es_manager.val.env_configs.n_groups=[3,3,1,1]",
]


def play(folder, *overrides):
    assert command.main(["--config-name", "base", *GAMES, f"output_dir={folder}", *overrides]) == 0
    return folder


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return play(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(played, tmp_path):
    return shutil.copytree(played, tmp_path / "run")


def same_reward(record):
    return record["rewards"]


def same_reward_as_floats(record):
    return [float(reward) for reward in record["rewards"]]


def nothing(record):
    return 0.0


def shorter_is_better(record):
    return {"rewards": np.array([-1.0] * len(record["rewards"])), "success": len(record["rewards"]) == 1}


def too_many(record):
    return [*record["rewards"], 1.0]


def no_number(record):
    return {"rewards": [float("nan")] * len(record["rewards"])}


def another_key(record):
    return {"reward": 1.0}


def success_in_words(record):
    return {"success": "no"}


def failing(record):
    raise ValueError("it is Tuesday")


def names_anywhere(reply):
    return [word for word in ("Up", "Down", "Left", "Right") if word in reply]


def no_names(reply):
    return [3]


def a_text(reply):
    return "Up"


def scored(run, *words):
    assert main([str(run), *words]) == 0
    return read_records(run / "scored/rollouts.jsonl")


@pytest.mark.parametrize("how", [(), ("--reward", "test_score:same_reward")])
def test_the_same_reward_gives_the_same_rows_byte_by_byte(run, how, capsys):
    before = (run / "rollouts.jsonl").read_bytes()
    scored(run, *how)
    assert (run / "scored/rollouts.jsonl").read_bytes() == before == (run / "rollouts.jsonl").read_bytes()
    first, again = (json.loads((folder / "results.json").read_text()) for folder in (run, run / "scored"))
    assert first["tags"] == again["tags"] and "0 of 16 trajectories differ" in capsys.readouterr().out


def test_a_whole_number_equals_itself_as_a_float(run, capsys):
    scored(run, "--reward", "test_score:same_reward_as_floats")
    assert "0 of 16 trajectories differ" in capsys.readouterr().out


@pytest.mark.parametrize("overrides", [["generation=2026"], ["quirks=true"], ["agent_proxy.enable_think=false"]])
def test_rows_of_every_generation_are_played_again(tmp_path, overrides):
    run = play(tmp_path / "run", *overrides)
    scored(run)
    assert (run / "scored/rollouts.jsonl").read_bytes() == (run / "rollouts.jsonl").read_bytes()


@pytest.mark.parametrize("words", [["--tags", "Countdown,Bandit"], ["--tags", "FrozenLake", "--limit", "3"]])
def test_a_part_of_an_evaluation_is_played_again_with_the_seeds_of_the_whole(tmp_path, words):
    run = play(tmp_path / "run", *words)
    scored(run)
    assert (run / "scored/rollouts.jsonl").read_bytes() == (run / "rollouts.jsonl").read_bytes()


def test_fewer_turns_give_the_rows_of_a_rollout_with_fewer_turns(run, tmp_path):
    shorter = play(tmp_path / "shorter", "agent_proxy.max_turn=2")
    scored(run, "agent_proxy.max_turn=2")
    assert (run / "scored/rollouts.jsonl").read_bytes() == (shorter / "rollouts.jsonl").read_bytes()
    assert (run / "scored/rollouts.jsonl").read_bytes() != (run / "rollouts.jsonl").read_bytes()


def test_another_reward_changes_rewards_success_and_results_and_no_reply(run):
    before, after = read_records(run / "rollouts.jsonl"), scored(run, "--reward", "test_score:shorter_is_better")
    for old, new in zip(before, after, strict=True):
        assert new["rewards"] == [-1.0] * len(old["rewards"])
        assert new["success"] == (len(old["rewards"]) == 1) == (new["metrics"][f"{new['tag']}/success"] == 1.0)
        assert (new["messages"], new["raw_replies"]) == (old["messages"], old["raw_replies"])
    results = json.loads((run / "scored/results.json").read_text())
    assert results["judged"] - results["failures"] == sum(new["success"] for new in after)


def test_one_number_is_the_reward_of_the_last_turn(run):
    assert all(not any(record["rewards"]) for record in scored(run, "--reward", "test_score:nothing"))


def test_another_parser_plays_the_same_replies_until_the_environment_shows_something_else(run, capsys):
    before = {record["env_id"]: record for record in read_records(run / "rollouts.jsonl")}
    after = scored(run, "--parser", "test_score:names_anywhere")
    assert any(before[record["env_id"]]["actions"] != record["actions"] for record in after)
    apart = [record for record in after if "error" in record]
    assert apart and "answers a different observation" in " ".join(record["error"] for record in apart)
    for record in after:
        old = before[record["env_id"]]
        assert record["raw_replies"] == old["raw_replies"][: len(record["raw_replies"])]
        assert states_shown(record) == states_shown(old)[: len(record["raw_replies"])]
    results = json.loads((run / "scored/results.json").read_text())
    out = capsys.readouterr().out
    assert results["missing_replies"] == len(apart) and "end early, where" in out
    assert f"unfinished: {len(apart)} of 16 trajectories lack" in out


def test_a_key_of_the_configuration_may_differ(run, tmp_path):
    assert main([str(run), "es_manager.format_penalty=-0.5", "-o", str(tmp_path / "stricter")]) == 0
    before, after = read_records(run / "rollouts.jsonl"), read_records(tmp_path / "stricter/rollouts.jsonl")
    assert [record["penalty"] * 5 for record in before] == pytest.approx([record["penalty"] for record in after])
    assert any(record["penalty"] for record in after)
    assert json.loads((tmp_path / "stricter/run.json").read_text())["es_manager.format_penalty"] == -0.5


@pytest.mark.parametrize("has_about", [True, False])
def test_files_of_another_evaluation_are_not_overwritten(run, tmp_path, capsys, has_about):
    other = shutil.copytree(run, tmp_path / "other")
    if not has_about:
        (other / "run.json").unlink()
        (other / "rollouts.jsonl").unlink()
    before = {path: path.read_bytes() for path in other.iterdir() if path.is_file()}
    assert main([str(run), "--reward", "test_score:nothing", "--output", str(other)]) == 2
    told = capsys.readouterr().err
    assert f"{other / 'results.json'} is not of a score of {run}" in told and "name another folder" in told
    assert before == {path: path.read_bytes() for path in other.iterdir() if path.is_file()}


def test_an_earlier_score_of_the_same_run_is_put_aside_from_any_folder(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    assert main([run.name, "--reward", "test_score:nothing", "-o", "again"]) == 0
    before = {path.name: path.read_bytes() for path in Path("again").iterdir()}
    assert "previous" not in capsys.readouterr().err
    monkeypatch.chdir(run)
    assert main([str(run), "--reward", "test_score:failing", "-o", "../again"]) == 2
    assert main([str(run), "--reward", "test_score:shorter_is_better", "-o", "../again"]) == 0
    assert "the files of the previous score are now in ../again/earlier/1\n" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("../again/earlier/1").iterdir()} == before
    assert any(record["success"] for record in read_records(run.parent / "again/rollouts.jsonl"))
    assert main([str(run), "--reward", "test_score:nothing"]) == 0
    moved = run.rename(tmp_path / "moved")
    monkeypatch.chdir(moved)
    assert main([str(moved), "--reward", "test_score:shorter_is_better"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--reward", "test_score:too_many"], "numbers, one for each turn"),
        (["--reward", "test_score:no_number"], "finite numbers"),
        (["--reward", "test_score:success_in_words"], "success = 'no'; expected True or False"),
        (["--reward", "test_score:another_key"], "the key 'reward'; expected rewards and success"),
        (["--reward", "test_score:failing"], "env 0: it raised ValueError: it is Tuesday (" + __file__),
        (["--reward", "test_score:nowhere"], "--reward is 'test_score:nowhere'"),
        (["--parser", "test_score:a_text"], "env 0, turn 1: it returned the text 'Up'"),
        (["--reward", "test_score:a_text"], "env 0: it returned the text 'Up'; expected"),
        (["--parser", "test_score:no_names"], "turn 1: it returned 3 among its actions"),
        (["actor.model=other"], "'actor.model' does not affect a score"),
        (["es_manager.val.env_configs.n_groups=[1,1,3,3]"], "are the rows those of its run.json"),
        (["-o", "."], "where the run itself is"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence_and_writes_nothing(run, words, said, capsys, monkeypatch):
    monkeypatch.chdir(run)
    capsys.readouterr()
    assert main([str(run), *words]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
    assert not (run / "scored").exists()


def test_rows_without_texts_are_scored_by_a_function_alone(run, capsys):
    rows = [record | {"messages": []} for record in read_records(run / "rollouts.jsonl")]
    for row in rows:
        del row["messages"], row["infos"], row["raw_replies"]
    (run / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([str(run)]) == 2
    assert "score with --reward" in capsys.readouterr().err
    assert not any(sum(record["rewards"]) for record in scored(run, "--reward", "test_score:nothing"))
