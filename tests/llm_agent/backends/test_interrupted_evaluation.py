"""An evaluation against a server, interrupted in every way: what was answered is kept, and asked no second time."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest

from ragen.llm_agent.rollout import command
from support.chat_server import chat_server, fail, raw, say

ROOT = Path(__file__).resolve().parents[3]
KEYS = [
    "es_manager.use_multiprocessing=false",
    "es_manager.val.env_groups=6",
    "es_manager.val.env_configs.tags=[Bandit,SimpleSokoban]",
    "es_manager.val.env_configs.n_groups=[2,4]",
    "agent_proxy.max_turn=3",
    "actor.model=tiny",
    "actor.openai.max_retries=1",
    "actor.openai.price={prompt: 1, completion: 2}",
]


def arguments(server, folder, *overrides):
    named = ["--config-name", "evaluate_api_llm", *KEYS, f"actor.base_url={server.url}", f"output_dir={folder}"]
    return [*named, *overrides]


def run(server, folder, *overrides):
    return command.main(arguments(server, folder, *overrides))


def reply_to(prompt):
    """A reply that follows from the prompt alone."""
    drawn = sha256(prompt.encode()).digest()
    action = ("Up", "Down", "Left", "Right", "Dragon", "Phoenix")[drawn[0] % 6]
    return say(f"<think>{drawn.hex()[:8]}</think><answer>{action}</answer>", 100 + drawn[1], 10 + drawn[2] % 7)


def used(folder):
    return json.loads((folder / "usage.json").read_text("utf-8"))


def rows(folder):
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing has interrupted, and how many requests it took."""
    folder = tmp_path_factory.mktemp("whole")
    with chat_server(lambda prompt, tries: reply_to(prompt)) as server:
        assert run(server, folder) == 0
    return folder, len(server.bodies)


def interrupting(server, after, how):
    """Answers ``after`` requests, and stalls the others; ``how`` is called as soon as one of them stalls."""
    given = []

    def script(prompt, tries):
        with server.lock:
            if len(given) >= after:
                return server.stall
            given.append(prompt)
        return reply_to(prompt)

    server.script = script
    threading.Thread(target=lambda: server.asked.wait(600) and how(), daemon=True).start()
    return given


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_that_was_interrupted_goes_on_without_asking_anything_twice(number, whole, tmp_path):
    folder, _ = whole
    with chat_server() as server:
        given = interrupting(server, 9, lambda: os.kill(os.getpid(), number))
        assert run(server, tmp_path, "actor.openai.grace=1") == SIGNALS[number]
        assert used(tmp_path)["requests"] == len(given)
        under_way = [
            body["messages"][-1]["content"] for body in server.bodies if body["messages"][-1]["content"] not in given
        ]
        asked = len(server.bodies)
        server.script = lambda prompt, tries: reply_to(prompt)
        assert run(server, tmp_path) == 0
        again = [body["messages"][-1]["content"] for body in server.bodies[asked:]]
    assert set(under_way) <= set(again)
    assert (tmp_path / "rollouts.jsonl").read_bytes() == (folder / "rollouts.jsonl").read_bytes()
    assert len(given) + len(again) == used(folder)["requests"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert used(tmp_path)[name] == used(folder)[name]
    assert used(tmp_path)["cost"] == pytest.approx(used(folder)["cost"])


def test_a_run_that_was_killed_loses_no_reply(whole, tmp_path):
    folder, requests = whole
    started = []

    def kill():
        journal, before = tmp_path / "journal.jsonl", None  # until nothing moves any more
        while (now := (journal.read_bytes(), len(server.bodies))) != before or now[0].count(b'{"reply"') < 9:
            before = now
            time.sleep(0.3)
        started[0].kill()

    with chat_server() as server:
        interrupting(server, 9, kill)
        program = [sys.executable, "-m", "ragen.llm_agent.agent_proxy", *arguments(server, tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        silent = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        started.append(subprocess.Popen(program, env=environment, **silent))
        assert started[0].wait(600) == -signal.SIGKILL
        asked = len(server.bodies)
        server.script = lambda prompt, tries: reply_to(prompt)
        assert run(server, tmp_path) == 0
        assert used(tmp_path)["requests"] == requests
    assert len(server.bodies) - asked == requests - 9
    assert (tmp_path / "rollouts.jsonl").read_bytes() == (folder / "rollouts.jsonl").read_bytes()


LOCKSTEP = """
from ragen.llm_agent.backends import Backend, OpenAIBackend

class Lockstep(Backend):
    @classmethod
    def from_config(cls, config, tokenizer=None):
        backend = cls()
        backend._streaming = OpenAIBackend.from_config(config)
        return backend

    def generate(self, requests, sampling):
        return self._streaming.generate(requests, sampling)

    def close(self):
        self._streaming.close()
"""


def test_the_rollouts_are_those_of_lockstep_bit_for_bit(whole, tmp_path, monkeypatch):
    folder, requests = whole
    (tmp_path / "lockstep.py").write_text(LOCKSTEP)
    monkeypatch.syspath_prepend(tmp_path)
    with chat_server(lambda prompt, tries: reply_to(prompt)) as server:
        assert run(server, tmp_path, "actor.backend='lockstep:Lockstep'") == 0
    assert len(server.bodies) == requests
    for name in ("rollouts.jsonl", "results.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_a_reply_that_arrives_while_a_run_stops_is_kept(tmp_path):
    with chat_server() as server:

        def script(prompt, tries):
            if len(server.bodies) == 6:
                os.kill(os.getpid(), signal.SIGINT)
                server.released.wait(0.3)
            return reply_to(prompt)

        server.script = script
        assert run(server, tmp_path, "actor.openai.grace=20") == 130
        bodies = len(server.bodies)
    assert (tmp_path / "journal.jsonl").read_text().count('{"reply"') == bodies


def test_a_trajectory_that_lacked_a_reply_goes_on_from_there(tmp_path):
    broken = True

    def script(prompt, tries):
        return fail(400, "no") if broken and "Turn 2" in prompt else reply_to(prompt)

    with chat_server(script) as server:
        assert run(server, tmp_path) == 3
        first = [body["messages"] for body in server.bodies]
        lacking = [one["env_id"] for one in rows(tmp_path) if "error" in one]
        broken, asked = False, len(server.bodies)
        assert run(server, tmp_path) == 0
        again = [body["messages"] for body in server.bodies[asked:]]
    assert lacking and not any("error" in one for one in rows(tmp_path))
    assert not [chat for chat in again if len(chat) <= 2], "a first turn was asked again"
    assert used(tmp_path)["requests"] == len(first) + len(again)
    assert used(tmp_path)["failed_requests"] == len(lacking)


@pytest.mark.parametrize(("limit", "name"), [("limit.tokens=1000", "tokens"), ("limit={cost: 0.001}", "cost")])
def test_a_limit_ends_a_run_in_order_and_the_printed_command_goes_on(whole, tmp_path, capsys, limit, name):
    folder, requests = whole
    with chat_server(lambda prompt, tries: reply_to(prompt)) as server:
        code, pasted = run(server, tmp_path, limit, "actor.openai.max_concurrency=4"), []
        while code == 4:
            reached, resume = capsys.readouterr().err.splitlines()[-2:]
            tokens = used(tmp_path)["prompt_tokens"] + used(tmp_path)["completion_tokens"]
            assert f"limit.{name}=" in reached and f" is reached: {tokens:,} tokens, $" in reached
            assert resume.startswith("to resume, with as much again: python -m ragen") and len(pasted) < requests
            pasted.append(len(server.bodies))
            code = command.main(shlex.split(resume.partition("agent_proxy ")[2]))
        assert run(server, tmp_path, limit) == code == 0
    assert 0 < pasted[0] < requests and pasted == sorted({*pasted}), "a pasted command did not go on"
    assert len(server.bodies) == requests == used(tmp_path)["requests"]
    assert (tmp_path / "rollouts.jsonl").read_bytes() == (folder / "rollouts.jsonl").read_bytes()


def test_a_limit_that_the_servers_replies_cannot_be_held_against_ends_the_run(tmp_path, capsys):
    uncounted = json.dumps({"choices": [{"message": {"content": "<answer>Up</answer>"}}]})
    with chat_server(lambda prompt, tries: raw(uncounted)) as server:
        assert run(server, tmp_path, "limit={tokens: 9, cost: 1}", "actor.openai.max_concurrency=1") == 1
        resume = capsys.readouterr().err.splitlines()[-1]
        assert len(server.bodies) <= 6
        assert command.main(shlex.split(resume.partition("agent_proxy ")[2])) == 0
        assert used(tmp_path)["uncounted_replies"] == len(server.bodies) and "cost" not in used(tmp_path)


def test_a_limit_of_minutes_ends_a_run_whose_server_stalls_and_is_that_of_the_next_run_too(tmp_path, capsys):
    with chat_server() as server:
        server.script = lambda prompt, tries: server.stall
        assert run(server, tmp_path, "limit.minutes=0.01", "actor.openai.grace=0.1") == 4
    resume = capsys.readouterr().err.splitlines()[-1]
    assert resume.startswith("to resume: ") and resume.count("limit.minutes=") == 1 and "limit.minutes=0.01" in resume


FRAIL = """
from pathlib import Path
from support.small_games import Pages

class Frail(Pages):
    def step(self, action):
        if self.seed % 2 and self.page == 1 and not Path(__file__).with_name("up").exists():
            raise ConnectionError("the service is down")
        return super().step(action)
"""


def test_failed_environments_are_played_again_with_the_replies_that_were_recorded(tmp_path, monkeypatch):
    (tmp_path / "fragile.py").write_text(FRAIL)
    monkeypatch.syspath_prepend(tmp_path)
    env = "+custom_envs.Frail={env_type: 'fragile:Frail', max_actions_per_traj: 3, env_instruction: go}"
    words = [env, "es_manager.val.env_configs={tags: [Frail], n_groups: [6]}", "es_manager.crash_report_dir=null"]
    with chat_server() as server:
        assert run(server, tmp_path / "run", *words, "es_manager.on_env_failure=raise") == 1
        assert run(server, tmp_path / "run", *words, "es_manager.step_timeout=90") == 3
        assert sum("env_error" in row for row in rows(tmp_path / "run")) == 3
        (tmp_path / "up").touch()
        assert run(server, tmp_path / "run", *words) == 0
        found = rows(tmp_path / "run")
        assert len(server.bodies) == sum(len(row["raw_replies"]) for row in found) == 18
    assert not any("env_error" in row for row in found)


def test_another_runs_files_are_put_aside_and_not_overwritten(tmp_path, capsys):
    with chat_server(lambda prompt, tries: reply_to(prompt)) as server:
        assert run(server, tmp_path) == 0
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert run(server, tmp_path, "resume=false", "seed=5") == 0
    aside = tmp_path / "earlier" / "1"
    assert f"are now in {aside}" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    assert {one["seed"] for one in rows(tmp_path)} == {5, 6, 7, 8, 9, 10}  # seed=5 is that of both modes
