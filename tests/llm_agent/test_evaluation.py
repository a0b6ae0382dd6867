"""Evaluations: what they come to, what a killed one leaves, and how it goes on."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from ragen.env import BaseEnv
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.rollout import command
from ragen.llm_agent.rollout.rollout_file import RolloutFile
from ragen.results.figures import evaluate
from ragen.results.rows import read_rows

ROOT = Path(__file__).resolve().parents[2]
GAMES = [
    "agent_proxy.max_turn=4",
    "actor.scripted.malformed=0.3",
    "es_manager.use_multiprocessing=false",
    "es_manager.val.env_groups=4",
    "es_manager.val.group_size=2",
    "es_manager.val.env_configs.tags=[SimpleSokoban,Countdown,MetamathQA,Bandit]",
    "es_manager.val.env_configs.n_groups=[1,1,1,1]",
]


def record(env_id, success, tag="A", group_id=0, **more):
    base = {
        "env_id": env_id,
        "group_id": group_id,
        "tag": tag,
        "seed": 1,
        "success": bool(success),
        "rewards": [success],
    }
    return base | {"actions": [[1]], "penalty": 0, "metrics": {}} | more


def run(folder, *overrides):
    return command.main(["--config-name", "base", *GAMES, f"output_dir={folder}", *overrides])


def lines(folder):
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text("utf-8").splitlines()]


# What it comes to


class OddInfos(BaseEnv):
    """Its infos have what JSON does not know."""

    uses_global_rng = False

    def __init__(self, config=None):
        self.turns = 0

    def reset(self, seed=None, mode=None):
        self.turns = 0

    def step(self, action):
        self.turns += 1
        odd = {"loss": math.nan, "best": np.float32("-inf"), "each": np.array([math.inf]), math.nan: "a\ud800"}
        return "", 1.0, self.turns > 1, {"success": True, "raw_reward": math.nan, **odd}

    def render(self, mode=None):
        return f"turn {self.turns}"


def test_every_file_of_a_run_is_json_for_a_strict_reader(tmp_path):
    tag = "+custom_envs.Odd={env_type: 'test_evaluation:OddInfos', max_actions_per_traj: 3, env_instruction: go}"
    odd = [
        "es_manager.val.env_groups=1",
        "es_manager.val.env_configs.tags=[Odd]",
        "es_manager.val.env_configs.n_groups=[1]",
    ]
    for resume in ("false", "true"):
        assert run(tmp_path, tag, *odd, "report=true", f"resume={resume}") == 0
    files = [*tmp_path.glob("*.json"), *tmp_path.glob("*.jsonl")]
    for path in files:
        text = path.read_text("utf-8")
        for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
            json.loads(part, parse_constant=pytest.fail)
    assert {"rollouts.jsonl", "results.json", "run.json", "usage.json"} <= {path.name for path in files}
    assert all(row["success"] and row["metrics"]["Odd/loss"] is None for row in lines(tmp_path))


def test_a_tag_has_its_success_with_an_interval_and_pass_at_k():
    outcomes = [(1, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 0)]
    members = [record(4 * g + i, ok, group_id=g) for g, group in enumerate(outcomes) for i, ok in enumerate(group)]
    (result,) = evaluate(members)
    assert (result.seeds, result.episodes, result.success) == (3, 12, pytest.approx(4 / 12))
    assert result.low < 4 / 12 < result.high
    assert list(result.pass_at) == [1, 2, 4]
    assert result.pass_at[1] == pytest.approx(4 / 12)
    assert result.pass_at[2] == pytest.approx((0.5 + 0 + 1) / 3)
    assert result.pass_at[4] == pytest.approx(2 / 3)
    assert result.pass_all == {1: pytest.approx(4 / 12), 2: pytest.approx((0 + 0 + 0.5) / 3), 4: 0.0}


def test_success_is_over_what_was_judged_and_three_kinds_of_ends_are_counted_apart():
    ends = [{}, {}, {"error": "down"}, {"env_error": "crashed"}, {"env_error": "crashed", "error": "down"}]
    (result,) = evaluate([record(i, i == 0, group_id=i, **end) for i, end in enumerate(ends)])
    assert (result.success, result.judged, result.episodes) == (0.5, 2, 5)
    assert (result.failures, result.missing_replies, result.env_errors) == (1, 1, 2)
    assert result.failures + result.missing_replies + result.env_errors + 1 == result.episodes


def test_without_a_judged_episode_there_is_no_success():
    (result,) = evaluate([record(0, 0, env_error="crashed")])
    assert (result.success, result.judged, result.pass_at, result.env_errors) == (None, 0, {}, 1)


@pytest.mark.parametrize(("broken", "code"), [(1, 3), (0, 0)])
def test_environments_that_crash_are_no_failures_of_the_model(broken, code, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tags = ["Raises", "Bandit"]
    overrides = [
        f"+custom_envs.Raises.env_type='support.faulty_envs:{'Faulty' if broken else 'Walk'}'",
        "+custom_envs.Raises.env_config={fault: raises, place: turn 0}",
        "+custom_envs.Raises.max_actions_per_traj=4",
        "+custom_envs.Raises.env_instruction=go",
        "es_manager.crash_report_dir=null",
        "es_manager.val.env_groups=2",
        f"es_manager.val.env_configs.tags=[{','.join(tags)}]",
        "es_manager.val.env_configs.n_groups=[1,1]",
    ]
    assert run(tmp_path, *overrides) == code
    first = json.loads((tmp_path / "results.json").read_text("utf-8"))
    tag = next(one for one in first["tags"] if one["tag"] == "Raises")
    assert first["env_errors"] == tag["env_errors"] == 2 * broken
    assert first["judged"] == 4 - 2 * broken and (tag["success"] is None) == bool(broken)
    rows = [one for one in lines(tmp_path) if "env_error" in one]
    assert [one["tag"] for one in rows] == ["Raises"] * 2 * broken
    told = capsys.readouterr()
    assert ("environments failed in 50.0% of the episodes" in told.err) == bool(broken)
    assert "env errors" in told.out and ("0/2" in told.out) == bool(broken)


def test_every_model_plays_the_same_seeds(tmp_path):
    for name, share in (("a", 0), ("b", 1)):
        assert run(tmp_path / name, f"actor.scripted.malformed={share}", "actor.scripted.random=0") == 0
    first, second = lines(tmp_path / "a"), lines(tmp_path / "b")
    assert [one["seed"] for one in first] == [one["seed"] for one in second] == [123, 123, 124, 124, 125, 125, 126, 126]
    assert [one["messages"][:2] for one in first] == [one["messages"][:2] for one in second]


# Killed, and going on


class Asked(list):
    """Notes which episodes are asked about, and interrupts the run at a turn."""

    def install(self, monkeypatch, stop_at=None):
        generate = ScriptedBackend.generate

        def noting(backend, requests, sampling):
            if requests and requests[0].turn == stop_at:
                raise KeyboardInterrupt
            self.append([request.env_id for request in requests])
            return generate(backend, requests, sampling)

        monkeypatch.setattr(ScriptedBackend, "generate", noting)


@pytest.mark.parametrize("overlapping", ["false", "true"])
def test_an_interrupted_run_goes_on_without_repeating_what_is_done(overlapping, tmp_path, monkeypatch):
    assert run(tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        Asked().install(patch, stop_at=1)
        assert run(tmp_path / "cut") == 130
    done = {one["env_id"] for one in lines(tmp_path / "cut")}
    assert 0 < len(done) < 8
    asked = Asked()
    with monkeypatch.context() as patch:
        asked.install(patch)
        assert run(tmp_path / "cut", "resume=true", f"agent_proxy.use_parallel_rollout={overlapping}") == 0
    assert {env_id for batch in asked for env_id in batch} == set(range(8)) - done
    assert (tmp_path / "cut/rollouts.jsonl").read_bytes() == (tmp_path / "whole/rollouts.jsonl").read_bytes()
    assert (tmp_path / "cut/results.json").read_bytes() == (tmp_path / "whole/results.json").read_bytes()


def test_resuming_without_the_folder_of_a_run_is_refused(capsys):
    assert command.main(["--config-name", "base", *GAMES, "resume=true"]) == 2
    assert "output_dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed.val=7", "'seed.val' was 123 when .* and is 7 now"),
        ("actor.scripted.seed=1", r"'actor\.scripted\.seed' was 0"),
        ("agent_proxy.max_turn=3", r"'agent_proxy\.max_turn' was 4"),
        (
            "custom_envs.Bandit.env_config.lo_arm_name=Cat",
            r"'custom_envs\.Bandit\.env_config\.lo_arm_name' was 'Phoenix'",
        ),
    ],
)
def test_a_run_of_something_else_does_not_go_on(override, said, tmp_path, capsys, played):
    for file in played.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    before = (tmp_path / "rollouts.jsonl").read_bytes()
    assert run(tmp_path, "resume=true", override) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(said, err)
    assert (tmp_path / "rollouts.jsonl").read_bytes() == before


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played")
    assert run(folder) == 0
    return folder


def test_what_only_decides_how_fast_may_change(tmp_path, played):
    for file in played.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert run(tmp_path, "resume=true", "es_manager.max_workers=1", "actor.openai.max_concurrency=2") == 0


# The file


def test_a_line_that_a_killed_run_left_unfinished_is_passed_over(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(record(0, 1)) + "\n" + json.dumps(record(1, 1))[:20], "utf-8")
    assert [one["env_id"] for one in read_rows(path)] == [0]


def test_episodes_without_a_reply_are_not_kept(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    with RolloutFile(path, {"mode": "val"}) as file:
        file.begin()
        file.add([record(0, 1), record(1, 0, error="down")])
    assert list(RolloutFile(path, {"mode": "val"}, resume=True).kept) == [0]


def test_a_group_that_cannot_be_judged_whole_has_no_pass_at_k(tmp_path):
    given = {"metrics": {"A/success": 1.0, "A/pass@2": 1.0}}
    rows = [
        record(0, 1, **given),
        record(1, 0, error="lost", **given),
        record(2, 1, group_id=1),
        record(3, 0, group_id=1),
    ]
    with RolloutFile(tmp_path / "rollouts.jsonl", {}) as file:
        file.begin()
        file.add(rows)
        found = [one["metrics"] for one in file.finish(group_size=2)]
    assert found[:2] == [{"A/success": 1.0}, {"A/success": 1.0}]
    assert [one["A/pass@2"] for one in found[2:]] == [1.0, 1.0]
