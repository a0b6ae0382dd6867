"""A server that lies harms nothing but its own trajectories: not the terminal, not the files, not the model's score."""

import errno
import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.backends import Request, Sampling
from ragen.llm_agent.backends import journal as journal_module
from ragen.llm_agent.backends.openai_settings import Access, ApiSettings
from ragen.llm_agent.rollout import evaluation as command
from ragen.llm_agent.rollout.rollout_file import RolloutFile
from ragen.results.rows import read_rows
from support.chat_server import chat_server, completion, cut, fail, raw, say
from support.later import http_client, openai

ROOT = Path(__file__).resolve().parents[3]
ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\x1b[31mRED\u202e\x9b"
SHOWN = r"\x1b]0;PWNED\x07\x1b[2J\x1b[31mRED\u202e\x9b"
PLAIN = "<think>a</think><answer>Foo</answer>"
KEY = "qx7-secret-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def evaluate(server, folder, *overrides, n=2):
    keys = [f"actor.base_url={server.url}", "actor.model=tiny", "actor.openai.backoff=0", "actor.openai.max_retries=1"]
    games = ["es_manager.use_multiprocessing=false", f"es_manager.val.env_groups={n}", "agent_proxy.max_turn=1"]
    games += ["es_manager.val.env_configs.tags=[Bandit]", f"es_manager.val.env_configs.n_groups=[{n}]"]
    return command.main([*keys, *games, f"output_dir={folder}", *overrides])


def ask(server, **settings):
    """The reply to one prompt."""
    backend = openai.OpenAIBackend(ApiSettings("tiny", server.url, backoff=0, **{"max_retries": 1, **settings}))
    try:
        return backend.generate([Request(0, 0, "T", [{"role": "user", "content": "a"}])], Sampling())[0]
    finally:
        backend.close()


def printed(capsys):
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_escape_sequences_of_a_servers_error_reach_no_terminal(tmp_path, capsys):
    with chat_server(lambda prompt, tries: fail(400, ESCAPES) if "Turn 1" in prompt else say(PLAIN)) as server:
        assert evaluate(server, tmp_path) == 1
    text = printed(capsys)
    assert SHOWN in text and not any(character in text for character in "\x1b\x07\u202e\x9b")


def test_a_finish_reason_reaches_the_terminal_short_and_without_escape_sequences(tmp_path, capsys):
    told = completion(PLAIN)
    told["choices"][0]["finish_reason"] = ESCAPES + "A" * 50_000
    with chat_server(lambda prompt, tries: raw(json.dumps(told))) as server:
        assert evaluate(server, tmp_path) == 0
    text = printed(capsys)
    assert "\x1b" not in text and max(map(len, text.splitlines())) < 400


def test_an_environments_message_that_quotes_a_reply_reaches_the_terminal_without_escape_sequences(tmp_path):
    (tmp_path / "hostile_env.py").write_text(
        "from ragen.env import BaseLanguageBasedEnv\n"
        "class Hostile(BaseLanguageBasedEnv):\n"
        "    def __init__(self, config=None): self.config = config\n"
        "    def reset(self, seed=None, mode=None): return 'state'\n"
        "    def step(self, action): raise ValueError(f'no such action: {action}')\n"
        "    def render(self, mode=None): return 'state'\n"
    )
    (tmp_path / "hostile.yaml").write_text(
        "defaults: [evaluate_api_llm, _self_]\n"
        "custom_envs: {T: {env_type: 'hostile_env:Hostile', max_actions_per_traj: 5, env_config: {}}}\n"
        "es_manager: {val: {env_groups: 2, group_size: 1, env_configs: {tags: [T], n_groups: [2]}}}\n"
    )
    with chat_server(lambda prompt, tries: say(f"<think>a</think><answer>{ESCAPES}</answer>")) as server:
        named = ["--config-dir", str(tmp_path), "--config-name", "hostile", f"actor.base_url={server.url}"]
        keys = ["actor.model=tiny", f"output_dir={tmp_path / 'out'}", "es_manager.use_multiprocessing=false"]
        ran = subprocess.run(
            [sys.executable, "-m", "ragen", "rollout", *named, *keys, "es_manager.crash_report_dir=null"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert ran.returncode == 3
    assert SHOWN in ran.stderr and "\x1b" not in ran.stdout + ran.stderr


def test_a_list_of_models_is_shown_without_escape_sequences_and_without_the_key(tmp_path, capsys):
    models = {ESCAPES: {}, f"echo-{KEY}": {}, "x" * 5000: {}}
    with chat_server(models=models) as server:
        assert evaluate(server, tmp_path / "out") == 2
    text = printed(capsys)
    assert SHOWN in text and "echo-***" in text and "\x1b" not in text and KEY not in text and len(text) < 1000


@pytest.mark.parametrize("body", ['{"data": 5}', '{"data": [5]}', "[" * 200_000])
def test_a_list_of_models_that_cannot_be_read_is_passed_over(body, tmp_path):
    with chat_server(lambda prompt, tries: say(PLAIN), models=raw(body)) as server:
        assert evaluate(server, tmp_path) == 0


def test_an_error_that_comes_with_status_200_is_told_in_the_servers_words():
    with chat_server(lambda prompt, tries: raw('{"error": {"message": "out of credits"}}')) as server:
        reply = ask(server)
        assert len(server.bodies) == 2
    assert reply.error == "the server's answer cannot be read: it is an error: out of credits (2 tries)"
    with chat_server(lambda prompt, tries: raw('{"error": {"message": "pay", "code": 402}}')) as server:
        assert ask(server).error.endswith("it is an error: pay") and len(server.bodies) == 1


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_reply_that_the_server_broke_off_is_asked_for_again_and_is_not_the_models_failure(reason, tmp_path):
    told = completion("")
    told["choices"][0]["finish_reason"] = reason
    with chat_server(lambda prompt, tries: say(PLAIN) if tries else raw(json.dumps(told))) as server:
        reply = ask(server)
    assert (reply.text, reply.error, reply.usage["retries"]) == (PLAIN, None, 1)


def test_a_trajectory_without_a_reply_is_no_success_of_the_command(tmp_path, capsys):
    def script(prompt, tries):
        return say(PLAIN) if len(server.bodies) == 1 else fail(401, "key revoked")

    with chat_server(script) as server:
        assert evaluate(server, tmp_path, "agent_proxy.max_turn=3") == 3
    assert "ended without a reply" in printed(capsys)


def test_an_answer_that_is_no_json_is_quoted_without_the_key():
    with chat_server(lambda prompt, tries: raw(f"<html>\n gateway {KEY}{'x' * 999}", "text/html")) as server:
        backend = openai.OpenAIBackend(ApiSettings("tiny", server.url, max_retries=0), Access(KEY))
        (reply,) = backend.generate([Request(0, 0, "T", [{"role": "user", "content": "a"}])], Sampling())
        backend.close()
    assert "; it begins with: <html> gateway ***xx" in reply.error and len(reply.error) < 310


def test_an_answer_that_is_nested_too_deeply_is_asked_for_again():
    with chat_server(lambda prompt, tries: say(PLAIN) if tries else raw("[" * 200_000)) as server:
        assert ask(server).text == PLAIN


def packed(body):
    """A gzip of a body and then 64 MiB of white space."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(body) + b"".join(packer.compress(b" " * 2**20) for _ in range(64)) + packer.flush()


def sent_as(data, coding=None):
    """Bytes as an answer."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        if coding is not None:
            handler.send_header("Content-Encoding", coding)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def test_an_answer_has_a_bound_also_when_it_is_compressed():
    body = json.dumps(completion(PLAIN)).encode()
    long = {"packed": sent_as(packed(body), "gzip"), "plain": sent_as(body + b" " * http_client.MOST_BYTES)}
    for answer in long.values():
        with chat_server(lambda prompt, tries, answer=answer: answer) as server:
            assert ask(server).error == "the server's answer cannot be read: the answer has more than 16 MiB (2 tries)"


@pytest.mark.parametrize(("coding", "wbits"), [("gzip", 31), ("deflate", 15), ("GZIP", 31), ("identity", None)])
def test_an_ordinary_compressed_answer_is_read(coding, wbits):
    body = json.dumps(completion(PLAIN)).encode()
    if wbits is not None:
        packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
        body = packer.compress(body) + packer.flush()
    with chat_server(lambda prompt, tries: sent_as(body, coding)) as server:
        assert ask(server).text == PLAIN


@pytest.mark.parametrize("coding", ["br", "gzip"])
def test_an_answer_that_cannot_be_decompressed_fails_its_own_request(coding):
    with chat_server(lambda prompt, tries: sent_as(b"nonsense", coding)) as server:
        assert "the server's answer cannot be read: the answer " in ask(server).error


def test_a_redirect_is_not_followed_and_named():
    with chat_server(lambda prompt, tries: say("elsewhere")) as other:
        away = fail(307, Location=f"{other.url.replace('//', '//user:word@')}/chat/completions?key=1")
        with chat_server(lambda prompt, tries: away) as server:
            reply = ask(server)
        with chat_server(models=fail(302, Location=f"{other.url}/models")) as server:
            settings = ApiSettings("tiny", server.url)
            with pytest.raises(ConfigError, match=f"redirects to {other.url}/models; redirects are not followed"):
                openai.OpenAIBackend(settings).checked()
        assert other.bodies == other.keys == []
    assert (
        f"redirects to http://***@127.0.0.1:{other.server_port}/v1/chat/completions?***; redirects are not"
        in reply.error
    )


def test_a_key_in_the_address_goes_with_every_request_and_is_shown_nowhere(tmp_path, capsys):
    paths = []

    def script(prompt, tries):
        return lambda handler: (paths.append(handler.path), say(PLAIN)(handler))

    with chat_server(script) as server:
        address = f"actor.base_url='{server.url}?api-key={KEY}&api-version=2024'"
        assert evaluate(server, tmp_path, address, "actor.model=null") == 0
        assert set(paths) == {f"/v1/chat/completions?api-key={KEY}&api-version=2024"}
        pasted = address.replace("'", "")  # as a shell passes it on
        assert evaluate(server, tmp_path / "pasted", pasted, "actor.model=null") == 0
        assert evaluate(server, tmp_path / "swept", pasted, "actor.model=null", "seed.val=1,2", "-m") == 0
        assert set(paths) == {f"/v1/chat/completions?api-key={KEY}&api-version=2024"}
    written = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in written + printed(capsys)


REFUSED = {
    "+actor.openai.api_key=hunter2pass": "'actor.openai.api_key' is not read: keys come from environment variables",
    "actor.openai.request.api_key=hunter2pass": "'actor.openai.request.api_key' looks like a key",
    "+actor.openai.retries=3": "'actor.openai.retries' is not known; 'actor.openai' has api_key_env",
    "actor.openai=5": "'actor.openai' is 5; expected a section of keys",
    "actor=null": "",
    "actor.openai.request.n=5": "'actor.openai.request.n' cannot be set: each request asks for one whole reply",
    "actor.openai.request.stream=true": "'actor.openai.request.stream' cannot be set",
    "actor.openai.request.messages=[]": "'actor.openai.request.messages' cannot be set",
    "actor.openai.request.model=other": "'actor.openai.request.model' cannot be set",
    "actor.openai.request.temperature=-1": "'actor.openai.request.temperature' is -1.0; expected at least 0",
    "actor_rollout_ref.rollout.response_length=0": "response_length' is 0; expected at least 1",
    "actor_rollout_ref.rollout.response_length=-5": "response_length' is -5; expected at least 1",
    "actor_rollout_ref.rollout.val_kwargs.temperature=-1": "val_kwargs.temperature' is -1.0; expected at least 0",
    "actor_rollout_ref.rollout.val_kwargs.top_p=2": "val_kwargs.top_p' is 2.0; expected a number from 0 to 1",
    "actor_rollout_ref.rollout.val_kwargs.top_k=-7": "val_kwargs.top_k' is -7.0; expected at least -1",
    "agent_proxy.max_context_window=0": "'agent_proxy.max_context_window' is 0",
    "output_dir=": "'output_dir' is empty; expected a folder, such as '.'",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_sent_or_written(override, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with chat_server() as server:
        assert evaluate(server, tmp_path / "out", override) == 2
        assert server.bodies == [] and server.keys == []
    text = printed(capsys)
    assert text.startswith("error: ") and text.count("\n") == 1
    assert REFUSED[override] in text and "hunter2" not in text and list(tmp_path.iterdir()) == []


# The folder


ROW = {"group_id": 0, "tag": "T", "seed": 1, "success": True, "metrics": {}}
ABOUT = {"mode": "val"}


def rows(*numbers):
    return [{"env_id": number, **ROW} for number in numbers]


def test_a_kill_while_run_json_is_written_leaves_it_whole(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    with RolloutFile(path, ABOUT, resume=True) as file:
        file.begin()
        file.add(rows(0))
    code = (
        "import os, pathlib, signal\n"
        "from ragen.llm_agent.rollout.rollout_file import RolloutFile\n"
        "replace = os.replace\n"
        "def dying(source, target, **more):\n"
        "    if 'run.json' in str(target):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    replace(source, target, **more)\n"
        "os.replace = dying\n"
        f"RolloutFile(pathlib.Path({str(path)!r}), {ABOUT!r}, resume=True).begin()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    with RolloutFile(path, ABOUT, resume=True) as file:
        file.begin()
        assert list(file.kept) == [0]


def test_rows_that_another_run_has_written_in_the_meantime_are_kept(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    with RolloutFile(path, ABOUT, resume=True) as first:
        first.begin()
        first.add(rows(0))
        second = RolloutFile(path, ABOUT, resume=True)
        with pytest.raises(ConfigError, match="another run is writing to"):
            second.begin()
        first.add(rows(1, 2))
    second.begin()
    second.close()
    assert list(second.kept) == [0, 1, 2] == [row["env_id"] for row in read_rows(path)]


def test_a_full_disk_ends_an_evaluation_in_a_sentence_and_the_same_command_goes_on(tmp_path, capsys, monkeypatch):
    write, given = os.write, []

    def full(file, data):
        if len(given) >= 3 and sum(path.stat().st_size for path in tmp_path.iterdir()) > journal_module.RESERVE_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    def script(prompt, tries):
        given.append(prompt)
        return say(PLAIN)

    monkeypatch.setattr(journal_module.os, "write", full)
    with chat_server(script) as server:
        turns = ("agent_proxy.max_turn=3", "actor.openai.max_concurrency=1")
        assert evaluate(server, tmp_path, *turns, n=4) == 1
        monkeypatch.setattr(journal_module.os, "write", write)
        error = capsys.readouterr().err
        asked = len(server.bodies)
        answered = (tmp_path / "replies.jsonl").read_text().count('"answered"')
        assert asked == answered < 12
        assert f"{tmp_path} cannot be written to: No space left on device" in error and "Traceback" not in error
        assert f"{answered} replies" in error and "to resume: ragen eval" in error
        assert evaluate(server, tmp_path, *turns, n=4) == 0
    usage = json.loads((tmp_path / "usage.json").read_text())
    assert usage["requests"] == len(server.bodies)


def test_a_server_that_has_not_read_a_request_has_a_count_within_what_is_told(tmp_path, capsys):
    with chat_server(lambda prompt, tries: (cut, cut, fail(429), say(PLAIN))[min(tries, 3)]) as server:
        assert evaluate(server, tmp_path, "actor.openai.max_retries=3", n=1) == 0
    usage = json.loads((tmp_path / "usage.json").read_text())
    assert (usage["requests"], usage["retries"], usage["unconfirmed"]) == (len(server.bodies), 3, 2)
    assert "failed attempts: 2 x the connection failed, 1 x HTTP 429\n" in printed(capsys)


def test_the_counts_after_a_refused_connection_are_those_of_the_server(tmp_path):
    with chat_server(lambda prompt, tries: say(PLAIN)) as server:
        settings = ApiSettings("tiny", "http://127.0.0.1:9/v1", backoff=0, max_retries=2)
    backend = openai.OpenAIBackend(settings)
    with journal_module.ReplyJournal(tmp_path / "j").open() as backend.journal:
        (reply,) = backend.generate([Request(0, 0, "T", [{"role": "user", "content": "a"}])], Sampling())
        assert backend.journal.usage == {"requests": 0, "retries": 0, "failed_requests": 1}
    backend.close()
    assert reply.error.startswith("the connection failed") and server.bodies == []
