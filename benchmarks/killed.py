"""Runs whose whole process group is killed at random instants, and started again: does the end differ?

``python benchmarks/killed.py rollout|evaluation|training [--kills 200] [--seed 0]`` plays the run once undisturbed,
then again and again: each time the same command is started in the same folder, and its process group gets SIGKILL after
a random part of the undisturbed time, until one ends by itself. Then rows or weights are compared with the undisturbed
ones, and the next folder begins, until so many kills have landed. ``python benchmarks/killed.py costs`` measures what a
journal costs. The exit code is 0 if nothing differs, no reply was recorded twice, and the server of the evaluation was
asked twice only for replies that were under way at a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REPLY_S = 0.05
UNDER_WAY = 8  # requests at a time
ENV = "+custom_envs.Slow={env_type: 'killed:Slow', max_actions_per_traj: 6, env_instruction: Count., env_config: {}}"
MANY = ["es_manager.val.env_groups=16", "es_manager.val.group_size=1", "es_manager.crash_report_dir=null"]
SLOW = [ENV, *MANY, "es_manager.val.env_configs={tags: [Slow], n_groups: [16]}", "agent_proxy.max_turn=6"]
TINY = [
    *("tiny_model.hidden_size=16", "tiny_model.num_hidden_layers=1", "tiny_model.num_attention_heads=2"),
    *("tiny_model.intermediate_size=32", "warm_up.steps=2", "warm_up.groups=8", "warm_up.batch_size=4"),
    *("es_manager.use_multiprocessing=true", "es_manager.max_workers=2", "trainer.total_training_steps=3"),
    *("trainer.save_freq=1", "trainer.test_freq=3", "actor_rollout_ref.rollout.response_length=6"),
]
WORKERS = ["es_manager.use_multiprocessing=true", "es_manager.max_workers=4"]
RUNS = {
    "rollout": ["rollout", *SLOW, *WORKERS, "resume=true", "es_manager.journal={folder}/turns"],
    "evaluation": [
        "eval",
        *SLOW,
        *WORKERS,
        "actor.model=m",
        "actor.base_url={url}",
        f"actor.openai.max_concurrency={UNDER_WAY}",
    ],
    "training": ["train", *TINY],
}


def __getattr__(name: str) -> Any:
    """``Slow``, the environment, which only the runs import."""
    if name != "Slow":
        raise AttributeError(name)
    from ragen.env.base import BaseLanguageBasedEnv

    @dataclass
    class Pause:
        pause: float = 0.05  # seconds a turn

    class Slow(BaseLanguageBasedEnv):
        """Counts and sleeps."""

        config_class = Pause

        def __init__(self, config: Pause) -> None:
            self.config = config

        def reset(self, seed: int | None = None, mode: str | None = None) -> str:
            self.count = seed or 0
            return self.render()

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            if self.config.pause:
                time.sleep(self.config.pause)
            self.count = (self.count * 31 + len(action)) % 1_000_003
            return self.render(), self.count / 1e6, False, {"count": self.count, "success": False}

        def render(self, mode: str | None = None) -> str:
            return f"The count is {self.count}."

        def example_action(self, rng: random.Random) -> str:
            return "x" * rng.randrange(1, 9)

    Slow.__qualname__, Slow.__module__ = "Slow", "killed"
    globals()["Slow"] = Slow
    return Slow


class Server(ThreadingHTTPServer):
    """Answers chats with what follows from them, and counts them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A client that was killed."""


class Handler(BaseHTTPRequestHandler):
    """See :class:`Server`."""

    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """The list of models."""
        self._send({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        """A chat completion."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        digest = sha256(json.dumps(json.loads(body)["messages"]).encode()).hexdigest()
        with self.server.lock:
            self.server.asked[digest] += 1
        time.sleep(REPLY_S)
        text = f"<think>{digest[:6]}</think><answer>{'x' * (1 + int(digest[0], 16))}</answer>"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        self._send(
            {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def command(name: str, folder: Path, url: str) -> list[str]:
    """The run's command line."""
    words = [word.replace("{folder}", str(folder)).replace("{url}", url) for word in RUNS[name]]
    return [sys.executable, "-m", "ragen", *words, f"output_dir={folder}"]


def run(name: str, folder: Path, url: str, after: float | None) -> int | None:
    """Run the command; its exit code, or None if it was killed after so many seconds."""
    paths = os.pathsep.join(
        [str(ROOT), str(ROOT / "engine"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    )
    environ = {**os.environ, "PYTHONPATH": paths, "OPENAI_API_KEY": "k"}
    with open(folder.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(
            command(name, folder, url), env=environ, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def outcome(name: str, folder: Path) -> Any:
    """The result to compare: rows, or weights."""
    if name != "training":
        return (folder / "rollouts.jsonl").read_bytes()
    import torch

    states = torch.load(folder / "checkpoints" / "train_000003.pt", weights_only=False)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]
    return {key: value.numpy().tobytes() for key, value in states["model"].items()}, metrics


def recorded_twice(folder: Path) -> int:
    """Replies and turns that a journal of the folder has twice."""
    twice = 0
    for path in folder.rglob("*.jsonl"):
        events = [
            json.loads(line) for line in path.read_bytes().splitlines() if line.startswith((b'{"reply', b'{"env"'))
        ]
        keys = [event.get("reply") or (event["env"], event["turn"]) for event in events]
        twice += len(keys) - len(set(keys))
    return twice


def costs(envs: int = 1000, turns: int = 20, pairs: int = 5) -> int:
    """Print what the manager's journal costs, and how long a resume takes."""
    from ragen.llm_agent.es_manager import EnvStateManager

    sys.path.insert(0, str(ROOT / "benchmarks"))

    def played(folder: Path | None, pause: float, count: int, mode: Any) -> float:
        """Seconds of so many turns of all environments, without the start of workers; in main, of the processor."""
        tag = {"env_type": "killed:Slow", "env_config": {"pause": pause}, "max_actions_per_traj": 99}
        part = {"env_groups": envs, "group_size": 1, "env_configs": {"tags": ["Slow"], "n_groups": [envs]}}
        keys = {"use_multiprocessing": mode, "max_workers": 2, "journal": None if folder is None else str(folder)}
        config = {"es_manager": {**keys, "val": part}, "custom_envs": {"Slow": tag}, "seed": {"val": 1}}
        with EnvStateManager(config, "val") as manager:
            states = manager.reset()
            clock = time.perf_counter if mode else time.process_time
            start = clock()
            for turn in range(count):
                given = {"actions": [f"act {turn}"], "llm_response": "", "llm_raw_response": ""}
                states = manager.step([{"env_id": state["env_id"], **given} for state in states])
            return clock() - start

    with tempfile.TemporaryDirectory() as parent:
        differences = [
            played(Path(parent) / f"cost{pair}", 0.0, turns, False) - played(None, 0.0, turns, False)
            for pair in range(pairs)
        ]
        print(f"journal: {statistics.median(differences) / envs / turns * 1e6:.1f} us a turn (median of {pairs} pairs)")
        first = played(Path(parent) / "resume", 0.001, turns, True)
        start = time.perf_counter()
        again = played(Path(parent) / "resume", 0.001, turns + 1, True)
        whole = time.perf_counter() - start
    print(
        f"{envs} environments of {turns} turns of 1 ms on two workers: {first:.2f} s; resumed, with one turn more, in "
        f"{again:.2f} s, {whole:.2f} s with the start of the workers: {whole / first:.2f} of it"
    )
    return 0


def main() -> int:
    """Run the command line; the exit code."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("run", choices=[*RUNS, "costs"])
    top.add_argument("--kills", type=int, default=200)
    top.add_argument("--seed", type=int, default=0)
    options = top.parse_args()
    if options.run == "costs":
        return costs()
    rng, name, server = random.Random(options.seed), options.run, Server()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    kills = differing = twice = again = folders = 0
    with tempfile.TemporaryDirectory() as parent:
        calm = Path(parent) / "calm"
        start = time.monotonic()
        assert run(name, calm, url, None) == 0, (calm.with_suffix(".log")).read_text()[-3000:]
        whole = time.monotonic() - start
        expected, once = outcome(name, calm), sum(server.asked.values())
        while kills < options.kills:
            folder, server.asked = Path(parent) / str(folders), Counter()
            folders, code = folders + 1, None
            while code is None:
                code = run(name, folder, url, rng.uniform(0.2, 1.0) * whole)
                kills += code is None
            assert code == 0, folder.with_suffix(".log").read_text()[-3000:]
            differing += outcome(name, folder) != expected
            twice += recorded_twice(folder)
            again += sum(server.asked.values()) - once
    print(
        f"{name}: {kills} kills of {folders} runs of {whole:.1f} s: {differing} with other results, {twice} replies or "
        f"turns recorded twice, {again / max(1, kills):.2f} requests repeated per kill of {UNDER_WAY} under way"
    )
    return int(bool(differing or twice or again > UNDER_WAY * kills))


if __name__ == "__main__":
    sys.exit(main())
