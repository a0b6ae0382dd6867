"""What overlapping rollouts gain, where answers and environments take their time and are uneven.

    python benchmarks/bench_parallel_rollout.py [--groups 16] [--group-size 4] [--workers 8] [--shards 1 2 4 8 16]

Environments wait with a heavy tail (``uneven.py``). Two kinds of backends answer, both by waiting for as long as a
reply would take, whose lengths are log-normal too:

``engine``  a model in this process: one call at a time, a batch takes as long as its longest reply, plus a share for
            each row, as decoding in batches does
``api``     a server: every request on its own clock, any number at a time, and what a call asks for comes together

The replies are the same in all runs, and so are the rollouts: the last column is a digest of the training batch.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Reply, Request, Sampling
from ragen.llm_agent.tokenizer import load_tokenizer

ROW_S = 0.001  # what one more row adds to an engine's batch
TOKEN_S = 0.0008


class SlowBackend(Backend):
    """Answers after the time that a reply of its length takes."""

    takes_tokens = True

    def __init__(self, thread_safe: bool) -> None:
        self.thread_safe = thread_safe  # type: ignore[misc]

    def generate(self, requests: list[Request], sampling: Sampling) -> list[Reply]:
        """Answer when the longest reply is written."""
        lengths = [self._length(request) for request in requests]
        time.sleep(max(lengths) * TOKEN_S + (0 if self.thread_safe else ROW_S * len(requests)))
        return [Reply(f"<think>{'so ' * min(n, 40)}</think><answer>go</answer>") for n in lengths]

    def _length(self, request: Request) -> int:
        """Tokens of a reply: 60 as a rule, 400 at most, the same whenever it is asked."""
        rng = random.Random(f"{request.env_id} {request.turn}")
        return min(400, int(60 * math.exp(rng.gauss(0, 0.8))))

    def close(self) -> None:
        """There is nothing to give back."""


def configuration(groups: int, group_size: int, workers: int, shards: int, turns: int) -> dict[str, Any]:
    envs = {"env_groups": groups, "group_size": group_size, "env_configs": {"tags": ["Rooms"], "n_groups": [groups]}}
    return {
        "seed": {"train": 1, "val": 1},
        "agent_proxy": {
            "max_turn": turns,
            "action_sep": "||",
            "max_actions_per_turn": 1,
            "enable_think": True,
            "use_parallel_rollout": shards > 0,
            "parallel_n_jobs": max(1, shards),
        },
        "custom_envs": {
            "Rooms": {"env_type": "uneven:Uneven", "max_actions_per_traj": 99, "env_instruction": "Find the exit."}
        },
        "es_manager": {"train": envs, "val": envs, "use_multiprocessing": True, "max_workers": workers},
        "actor_rollout_ref": {"rollout": {"response_length": 400, "max_model_len": 100_000}},
    }


def measure(backend: SlowBackend, config: dict[str, Any], rollouts: int) -> tuple[float, dict[str, float], str]:
    """Seconds of a rollout, its parts, and a digest of the last batch; a first rollout starts the workers."""
    from verl import DataProto

    seconds = []
    with LLMAgentProxy(config, backend, load_tokenizer()) as proxy:
        for _ in range(rollouts + 1):
            start = time.perf_counter()
            batch = proxy.rollout(DataProto())
            seconds.append(time.perf_counter() - start)
        parts = dict(proxy.seconds)
        if proxy.parallel is not None and proxy.parallel.fallback_reason:
            raise SystemExit(proxy.parallel.fallback_reason)
    digest = hashlib.blake2b(digest_size=6)
    for name in sorted(batch.batch.keys()):
        digest.update(batch.batch[name].numpy().tobytes())
    return sum(seconds[1:]) / rollouts, parts, digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"groups": 16, "group-size": 4, "workers": 8, "turns": 6, "rollouts": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 4, 8, 16])
    asked = parser.parse_args()
    print(f"{asked.groups} x {asked.group_size} environments, {asked.workers} workers, {asked.turns} turns")
    print(f"{'backend':8}{'shards':>9}{'seconds':>9}{'gain':>7}{'generation':>12}{'environments':>14}   batch")
    for kind in ("engine", "api"):
        ordinary = 0.0
        for shards in (0, *asked.shards):
            config = configuration(asked.groups, asked.group_size, asked.workers, shards, asked.turns)
            seconds, parts, digest = measure(SlowBackend(kind == "api"), config, asked.rollouts)
            ordinary = ordinary or seconds
            name, busy = str(shards or "lockstep"), (parts["generation"], parts["environments"])
            print(
                f"{kind:8}{name:>9}{seconds:9.2f}{ordinary / seconds:6.2f}x{busy[0]:12.2f}{busy[1]:14.2f}   {digest}",
                flush=True,
            )


if __name__ == "__main__":
    main()
