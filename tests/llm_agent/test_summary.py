"""The tables at the end of a rollout, and the records of its trajectories."""

import json
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from ragen.llm_agent.evaluation.results import evaluate, print_results
from ragen.llm_agent.evaluation.tables import print_summary, summarise
from ragen.llm_agent.rollout.trajectories import trajectory, write_jsonl


def played(tag="A", env_id=0, group_id=0, rewards=(1.0,), penalty=0.0, success=1.0, passed=1.0, k=2):
    turns = [
        {"state": f"s{i}", "actions_left": 9, "actions": [1, 2] if reward else [], "reward": reward, "info": {"x": i}}
        for i, reward in enumerate(rewards)
    ]
    metrics = {f"{tag}/success": success, f"{tag}/num_actions": 2.0 * len(rewards), f"{tag}/pass@{k}": passed}
    history = [*turns, {"state": "end", "actions_left": 0, "metrics": {}}]
    return {
        "env_id": env_id, "group_id": group_id, "tag": tag, "history": history, "penalty": penalty, "metrics": metrics,
    }  # fmt: skip


def test_each_tag_gets_the_means_of_its_episodes():
    states = [
        played(rewards=(1.0, 2.0), success=1.0),
        played(env_id=1, rewards=(0.0, 0.0, 0.5, 0.5), success=0.0, penalty=-0.2),
        played("B", 2, 1, success=0.0, passed=0.0),
    ]
    a, b = summarise(states, format_penalty=-0.1)
    assert (a.tag, a.episodes, a.success) == ("A", 2, 0.5)
    assert (a.reward, a.actions, a.turns) == (2.0, 6.0, 3.0)
    assert a.invalid == pytest.approx(2 / 6)
    assert (b.tag, b.success, b.invalid) == ("B", 0.0, 0.0)


def test_without_a_penalty_replies_that_did_nothing_count_as_invalid():
    (tag,) = summarise([played(rewards=(0.0, 1.0))], format_penalty=0.0)
    assert tag.invalid == 0.5


def test_an_episode_without_turns_counts_as_one_without_reward():
    (tag,) = summarise([played(rewards=())], format_penalty=-0.1)
    assert (tag.reward, tag.turns, tag.invalid) == (0.0, 0.0, 0.0)


def test_the_tables_name_times_and_lanes():
    out = StringIO()
    lanes = [
        SimpleNamespace(node="", lane="main", pid=10, env_types=(), envs=0, turns=0, busy_s=0.0, restarts=0),
        SimpleNamespace(
            node="", lane="worker 0", pid=11, env_types=("sokoban",), envs=8, turns=40, busy_s=1.25, restarts=3
        ),
    ]
    where = {"Boxes": "in the main process, because a turn costs less than the messages to a worker would"}
    print_summary(Console(file=out, width=100), {"generation": 3.0, "environments": 0.5}, 4.0, lanes, where)
    assert [line for line in out.getvalue().splitlines() if line != line.rstrip()] == []
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "generation 3.00 75%" in lines
    assert "other 0.50 12%" in lines
    assert "worker 0 11 8 40 1.25 3 sokoban" in lines


def record(tag, env_id, success):
    return {"env_id": env_id, "group_id": env_id // 2, "tag": tag, "seed": 1, "success": success, "rewards": [1.5]}


@pytest.mark.parametrize("width, tables", [(80, 2), (140, 1)])
def test_results_are_one_table_in_parts_that_fit_the_terminal_and_say_nothing_twice(width, tables):
    records = [record("Boxes", n, n < 3) for n in range(4)] + [record("Lake", 4, True)]
    tags = summarise([played("Boxes"), played("Lake", rewards=(1.0, 0.0), penalty=-0.1)], format_penalty=-0.1)
    out = StringIO()
    print_results(Console(file=out, width=width), evaluate(records), {}, tags)
    lines = out.getvalue().splitlines()
    heads = [line.split() for line in lines if line.startswith("tag ")]
    assert len(heads) == tables and max(map(len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]
    told = [line for line in lines if line.startswith("Boxes ")]
    assert " ".join(told[0].split()).startswith("Boxes 75.0% 4/4 ")
    words = " ".join(" ".join(head[1:]) for head in heads)
    assert words == (
        "success judged 95% interval pass@2 pass^2 failures env errors no reply reward turns actions invalid"
    )
    assert [" ".join(line.split()) for line in lines if line.startswith("all ")][-1].endswith("1.5 3.0 33.3%")


def test_a_trajectory_keeps_messages_rewards_infos_seed_and_tag():
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    record = trajectory(played(rewards=(0.5, 1.0)), messages, seed=77, mode="val", invalid=[1], error="no reply")
    assert record["messages"] == messages
    assert (record["rewards"], record["infos"]) == ([0.5, 1.0], [{"x": 0}, {"x": 1}])
    assert (record["tag"], record["seed"], record["mode"], record["success"]) == ("A", 77, "val", True)
    assert record["error"] == "no reply" and record["invalid"] == [False, True]
    assert "error" not in trajectory(played(), messages, seed=1, mode="val", invalid=())


def test_trajectories_are_written_a_line_each_with_values_that_json_does_not_know(tmp_path):
    path = tmp_path / "new" / "rollouts.jsonl"
    write_jsonl([{"a": np.float32(0.5), "b": np.arange(2), "c": {2, 1}, "d": "√"}, {"a": np.bool_(True)}], path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"a": 0.5, "b": [0, 1], "c": [1, 2], "d": "√"}, {"a": True}]
