"""Rollouts that overlap, held against the ordinary ones: time, results and metrics of both.

    python test_parallel_rollout.py --config-name base-parallel
    python test_parallel_rollout.py --config-name base-parallel --rollouts 5 agent_proxy.parallel_n_jobs=8

Both play the same seeds; the first rollout of each is no part of the times, since workers start in it. With a backend
whose replies depend on their prompts alone (the scripted one) the rollouts have to be equal in every bit: the command
says where they first differ, and exits with 1. With a sampling model they differ, and the metrics are to be looked at.
``benchmarks/bench_parallel_rollout.py`` shows what is gained where answers and environments take their time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ragen.errors import RagenError
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import create_backend, create_tokenizer
from ragen.llm_agent.config.command_line import add_config_arguments
from ragen.llm_agent.config.loading import load_config
from ragen.llm_agent.testing.equivalence import Difference, Recording
from ragen.settings import setting

SHOWN = ("success", "num_actions")  # metrics of each tag that the table shows


@dataclass
class Played:
    """What came of some rollouts.

    Attributes:
        seen: Everything that they gave.
        seconds: How long each took.
        parts: The seconds of the last one by part.
        metrics: Those of the last one.
        reason: Why the ordinary loop had to help; None if it had not.
    """

    seen: Recording = field(default_factory=Recording)
    seconds: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str | None = None


def play(config: Any, parallel: bool, rollouts: int) -> Played:
    """Play the training environments of a configuration, and one rollout more before the clock runs."""
    from omegaconf import OmegaConf
    from verl import DataProto

    config = OmegaConf.merge(config, {"agent_proxy": {"use_parallel_rollout": parallel}})
    tokenizer = create_tokenizer(config)
    backend, played = create_backend(config, tokenizer), Played()
    try:
        with LLMAgentProxy(config, backend, tokenizer) as proxy:
            for number in range(rollouts + 1):
                start = time.perf_counter()
                batch = proxy.rollout(DataProto(meta_info={"validate": False}))
                if number:
                    played.seconds.append(time.perf_counter() - start)
                note(played.seen, f"rollout {number}", batch, proxy)
            played.parts, played.metrics = dict(proxy.seconds), batch.meta_info["metrics"]
            played.reason = proxy.parallel.fallback_reason if proxy.parallel is not None else None
    finally:
        backend.close()
    return played


def note(seen: Recording, where: str, batch: Any, proxy: LLMAgentProxy) -> None:
    """Write down all of a rollout: the caches, and every tensor and column of the batch."""
    seen.note(f"{where}, states", proxy.rollout_states)
    for name in sorted(batch.batch.keys()):
        seen.note(f"{where}, {name}", batch.batch[name].numpy())
    seen.note(f"{where}, objects", batch.non_tensor_batch)
    seen.note(f"{where}, metrics", batch.meta_info["metrics"])


def compare(config: Any, rollouts: int) -> tuple[Played, Played, Difference | None]:
    """The ordinary rollouts, those that overlap, and where they first differ."""
    ordinary, overlapped = (play(config, parallel, rollouts) for parallel in (False, True))
    return ordinary, overlapped, ordinary.seen.first_difference(overlapped.seen)


def report(ordinary: Played, overlapped: Played, difference: Difference | None) -> None:
    """Print times, metrics and the verdict."""
    mean = [sum(played.seconds) / len(played.seconds) for played in (ordinary, overlapped)]
    print(f"{'':28}{'ordinary':>12}{'parallel':>12}")
    rows = [("seconds per rollout", *mean)]
    rows += [(f"  {part} (of the last)", ordinary.parts[part], overlapped.parts[part]) for part in ordinary.parts]
    rows += [
        (name, value, overlapped.metrics.get(name, float("nan")))
        for name, value in sorted(ordinary.metrics.items())
        if name.rpartition("/")[2] in SHOWN and "non-zero" not in name
    ]
    for name, one, other in rows:
        print(f"{name:28}{one:12.3f}{other:12.3f}")
    print(f"\nspeed-up: {mean[0] / mean[1]:.2f}")
    if overlapped.reason is not None:
        print(f"the ordinary loop had to help: {overlapped.reason}")
    print(f"DIFFERENT at {difference}" if difference else f"equal in all {len(ordinary.seen.facts)} facts")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 if the rollouts are equal, 1 if not, 2 for a bad configuration."""
    parser = argparse.ArgumentParser(description="Compare rollouts that overlap with the ordinary ones.")
    parser.add_argument("--rollouts", type=int, default=2, help="rollouts whose time is taken (default: %(default)s)")
    add_config_arguments(parser, "base-parallel")
    arguments = parser.parse_intermixed_args(argv)
    try:
        config = load_config(arguments.config_name, arguments.overrides, arguments.config_path)
        result = compare(config, max(1, arguments.rollouts))
    except RagenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.config_name}: {setting(config, 'actor.backend', str)}, {arguments.rollouts} rollouts each\n")
    report(*result)
    return 1 if result[2] is not None else 0


def test_rollouts_that_overlap_are_equal_to_the_ordinary_ones() -> None:
    """The shipped configuration, smaller."""
    groups = "[1,1,1,1,1,1,1]"
    small = ["es_manager.val.env_groups=7", "es_manager.train.env_groups=7", "es_manager.train.group_size=2"]
    small += [f"es_manager.{mode}.env_configs.n_groups={groups}" for mode in ("train", "val")]
    small += ["agent_proxy.parallel_n_jobs=3", "agent_proxy.max_turn=3"]
    ordinary, overlapped, difference = compare(load_config("base-parallel", small), rollouts=1)
    assert difference is None, str(difference)
    assert overlapped.reason is None
    assert overlapped.metrics == ordinary.metrics


if __name__ == "__main__":
    sys.exit(main())
