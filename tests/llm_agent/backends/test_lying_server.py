"""A server that lies harms nothing but its own trajectories: not the terminal, not the files, not the model's score."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envlanes.ragen import journal as journal_module
from ragen.errors import ConfigError
from ragen.llm_agent.rollout import evaluation as command
from ragen.llm_agent.rollout.rollout_file import RolloutFile
from ragen.results.rows import read_rows
from support.chat_server import chat_server, completion, fail, raw, say

ROOT = Path(__file__).resolve().parents[3]
ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\x1b[31mRED\u202e\x9b"
SHOWN = r"\x1b]0;PWNED\x07\x1b[2J\x1b[31mRED\u202e\x9b"
PLAIN = "<think>a</think><answer>Foo</answer>"
KEY = "qx7-secret-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def evaluate(server, folder, *overrides, n=2):
    keys = [f"actor.base_url={server.url}", "actor.model=tiny", "actor.openai.max_retries=0"]
    games = ["es_manager.use_multiprocessing=false", f"es_manager.val.env_groups={n}", "agent_proxy.max_turn=1"]
    games += ["es_manager.val.env_configs.tags=[Bandit]", f"es_manager.val.env_configs.n_groups=[{n}]"]
    return command.main([*keys, *games, f"output_dir={folder}", *overrides])


def printed(capsys):
    captured = capsys.readouterr()
    return captured.out + captured.err


ODD_REASON = completion(PLAIN)
ODD_REASON["choices"][0]["finish_reason"] = ESCAPES + "A" * 50_000
HOSTILE = {
    "an error": (fail(400, ESCAPES), {"tiny": {}}, 1),
    "a finish reason": (raw(json.dumps(ODD_REASON)), {"tiny": {}}, 0),
    "a list of models": (say(PLAIN), {ESCAPES: {}, f"echo-{KEY}": {}, "x" * 5000: {}}, 2),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_servers_words_reach_the_terminal_short_and_without_escape_sequences_and_keys(case, tmp_path, capsys):
    answer, models, code = HOSTILE[case]
    with chat_server(lambda prompt, tries: answer, models=models) as server:
        assert evaluate(server, tmp_path / "out") == code
    text = printed(capsys)
    assert not any(character in text for character in "\x1b\x07\u202e\x9b") and KEY not in text
    assert max(map(len, text.splitlines())) < 1000 and SHOWN in text


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
        if len(given) > 3 and b'"reply"' in bytes(data):
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
        error, asked = capsys.readouterr().err, len(server.bodies)
        assert (tmp_path / "journal.jsonl").read_text().count('{"reply"') == 3
        assert str(tmp_path) in error and "Traceback" not in error
        assert evaluate(server, tmp_path, *turns, n=4) == 0
        assert len(server.bodies) == asked + 12 - 3
