"""The command that evaluates a model behind an API, against a server on localhost that works, fails and stalls."""

import json

import pytest

from ragen.llm_agent.rollout import command
from support.chat_server import chat_server, fail, say

GAMES = [
    "es_manager.use_multiprocessing=false",
    "es_manager.val.env_groups=4",
    "es_manager.val.env_configs.tags=[Bandit,SimpleSokoban]",
    "es_manager.val.env_configs.n_groups=[2,2]",
    "agent_proxy.max_turn=2",
]
ANSWER = "<think>go</think><answer>Up</answer>"
BOTH_ARMS = "<think>go</think><answer>Dragon</answer>"


def run(server, folder, *overrides, config="evaluate_api_llm"):
    keys = ["actor.model=tiny", f"actor.base_url={server.url}", "actor.openai.max_retries=1"]
    keys += ["actor.openai.grace=0.1"]
    return command.main(["--config-name", config, *GAMES, *keys, f"output_dir={folder}", *overrides])


def records(folder):
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text("utf-8").splitlines()]


def bandit(prompt):
    return "Dragon" in prompt


def test_a_model_is_evaluated_with_its_tokens_and_dollars_counted(tmp_path):
    with chat_server(lambda prompt, tries: say(BOTH_ARMS if bandit(prompt) else ANSWER, 1000, 10)) as server:
        assert run(server, tmp_path, "actor.openai.price={prompt: 1, completion: 2}") == 0
    requests = len(server.bodies)
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert results["usage"]["prompt_tokens"] == 1000 * requests
    assert results["usage"]["cost"] == pytest.approx(requests * 0.00102)
    assert [one["tag"] for one in results["tags"]] == ["Bandit", "SimpleSokoban", "all"]
    assert all(any(message["content"] == BOTH_ARMS for message in one["messages"]) for one in records(tmp_path)[:2])


def test_a_server_that_answers_nobody_is_an_error_of_the_run(tmp_path):
    with chat_server(lambda prompt, tries: fail(404, "no such model")) as server:
        assert run(server, tmp_path) == 1
    assert len(records(tmp_path)) == 4
