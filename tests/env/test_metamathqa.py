from __future__ import annotations

import json
from pathlib import Path

from ragen.env.metamathqa.config import MetaMathQAEnvConfig
from ragen.env.metamathqa.env import MetaMathQAEnv


def env_with(response: str, tmp_path: Path) -> MetaMathQAEnv:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"query": "What is it?", "response": response}))
    env = MetaMathQAEnv(MetaMathQAEnvConfig(dataset_path=str(path)))
    env.reset(0)
    return env


def test_each_attempt_halves_what_the_right_answer_earns(tmp_path: Path) -> None:
    env = env_with("The answer is: 5 Apples", tmp_path)
    assert env.step("no") == ("Incorrect. Please think again.", 0.0, False, {"action_is_valid": True, "success": False})
    assert env.step(" \n")[3] == {"action_is_valid": False, "success": False}
    assert env.step(" 5\tAPPLES ") == ("Correct!", 0.25, True, {"action_is_valid": True, "success": True})
    env.reset(0)
    assert env.step("5apples")[1] == 1.0


def test_the_right_answer_is_all_that_follows_the_first_marker(tmp_path: Path) -> None:
    assert env_with("The answer is: 12. Or:\nThe answer is: 13", tmp_path).step("12. Or: The answer is: 13")[1] == 1.0
