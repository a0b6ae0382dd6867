"""The tables at the end of a rollout, and the records of its trajectories."""

import json

import numpy as np
import pytest

from ragen.llm_agent.evaluation.results import evaluate
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


def record(tag, env_id, success, rewards=(1.5,), actions=([1, 2],), invalid=(False,), **more):
    base = {"env_id": env_id, "group_id": env_id // 2, "tag": tag, "seed": 1, "success": bool(success)}
    return base | {"rewards": list(rewards), "actions": list(actions), "invalid": list(invalid)} | more


def test_each_tag_gets_the_means_of_its_episodes():
    a, b, whole = evaluate(
        [
            record("A", 0, 1, (1.0, 2.0), ([1, 2], [1, 2]), (False, False)),
            record("A", 1, 0, (0.0, 0.0, 0.5, 0.5), ([], [1], [1, 2], [1]), (True, True, False, False)),
            record("B", 2, 0, (), (), ()),
        ]
    )
    assert (a.tag, a.episodes, a.success) == ("A", 2, 0.5)
    assert (a.reward, a.actions, a.turns, a.invalid) == (2.0, 4.0, 3.0, pytest.approx(2 / 6))
    assert (b.reward, b.turns, b.actions, b.invalid) == (0.0, 0.0, 0.0, 0.0)
    assert (whole.turns, whole.actions, whole.invalid) == (2.0, pytest.approx(8 / 3), pytest.approx(2 / 6))


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
