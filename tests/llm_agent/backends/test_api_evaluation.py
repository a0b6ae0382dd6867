"""The command that evaluates a model behind an API, against a server on localhost that works, fails and stalls."""

import json

import pytest

from ragen.llm_agent.rollout import command
from support.chat_server import chat_server, completion, fail, raw, say

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


def test_a_model_is_evaluated_with_its_tokens_and_dollars_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with chat_server(lambda prompt, tries: say(BOTH_ARMS if bandit(prompt) else ANSWER, 1000, 10)) as server:
        assert run(server, tmp_path, "actor.openai.price={prompt: 1, completion: 2}") == 0
    requests = len(server.bodies)
    out = capsys.readouterr().out
    assert f"{requests} requests" in out and f"${requests * 0.00102:,.4f}" in out and "95% interval" in out
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert results["usage"]["prompt_tokens"] == 1000 * requests
    assert [one["tag"] for one in results["tags"]] == ["Bandit", "SimpleSokoban", "all"]
    assert all(any(message["content"] == BOTH_ARMS for message in one["messages"]) for one in records(tmp_path)[:2])


def test_half_a_surrogate_pair_does_not_end_the_run(tmp_path):
    def script(prompt, tries):
        return fail(400, "no \ud83d") if bandit(prompt) else say("<think>a\ud83d</think><answer>\udc00</answer>")

    with chat_server(script) as server:
        assert run(server, tmp_path) == 3
    assert [one.get("error") for one in records(tmp_path)] == ["HTTP 400: no \ufffd"] * 2 + [None] * 2


@pytest.mark.parametrize(("token", "log_prob"), [(2**40, -1), (True, -1), (5, "x")])
def test_a_server_that_tells_nonsense_of_tokens_is_taken_by_its_text(token, log_prob, tmp_path):
    told = completion(ANSWER) | {"prompt_token_ids": [1, 2]}
    steps = [{"token": "t", "logprob": log_prob, "bytes": None, "top_logprobs": []}]
    told["choices"][0] |= {"token_ids": [token], "logprobs": {"content": steps}}

    with chat_server(lambda prompt, tries: raw(json.dumps(told)) if bandit(prompt) else say(ANSWER)) as server:
        assert run(server, tmp_path, "agent_proxy.training_tokens=sampled") == 0
    assert not any("error" in one for one in records(tmp_path))


def test_a_server_that_answers_nobody_is_an_error_of_the_run(tmp_path, capsys):
    with chat_server(lambda prompt, tries: fail(404, "no such model")) as server:
        assert run(server, tmp_path) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("error: no prompt got a reply: HTTP 404: no such model.")
    assert len(records(tmp_path)) == 4


def test_nothing_that_is_written_or_printed_has_the_key_in_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key := "sk-secret-0123456789")
    with chat_server(lambda prompt, tries: say(ANSWER) if bandit(prompt) else fail(400, f"bad {key}")) as server:
        assert run(server, tmp_path) == 3
        assert f"Bearer {key}" in server.keys
    written = "".join(path.read_text("utf-8") for path in tmp_path.iterdir())
    assert key not in written + "".join(capsys.readouterr())
