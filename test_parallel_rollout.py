"""Parallel rollouts held against the ordinary ones: time, results, metrics and errors.

    python test_parallel_rollout.py --config-name base-parallel
    python test_parallel_rollout.py --config-name base-parallel --rollouts 5 agent_proxy.parallel_n_jobs=8

Both play the same seeds; the first rollout of each is no part of the times, since workers start in it. Then a worker is
killed in the middle of a rollout, and in another one the actor raises an error: the ordinary loop takes over. With a
backend whose replies depend on their prompts alone (the scripted one) all rollouts have to be equal in every bit: the
command says where they first differ, and exits with 1. With a sampling model they differ, and the metrics are to be
looked at.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from ragen.config.command_line import add_config_arguments
from ragen.config.loading import load_config
from ragen.errors import RagenError
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Reply, Request, Sampling, create_backend, create_tokenizer
from ragen.llm_agent.testing.equivalence import Recording

SHOWN = ("success", "num_actions")  # metrics of each tag that the table shows


@dataclass
class Played:
    """Some rollouts.

    Attributes:
        seen: Everything that they gave.
        seconds: How long each took, without the first.
        parts: The seconds of the last one by part.
        metrics: Those of the last one.
        reason: Why the ordinary loop played (a part of) the last one; None if it did not.
    """

    seen: Recording = field(default_factory=Recording)
    seconds: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str | None = None


class Disturbed(Backend):
    """A backend before whose second answer something happens."""

    def __init__(self, backend: Backend, disturb: Callable[[], None]) -> None:
        """Wrap a backend."""
        self._backend, self._disturb, self._asked = backend, disturb, 0

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """Answer."""
        self._asked += 1
        if self._asked == 2:
            self._disturb()
        return self._backend.generate(requests, sampling)


def kill_a_worker() -> None:
    """Kill one of joblib's processes; threads cannot be killed."""
    workers = [each for each in psutil.Process().children(recursive=True) if "popen_loky" in " ".join(each.cmdline())]
    for worker in workers[:1]:
        worker.kill()


def raise_an_error() -> None:
    """Raise what an actor may raise.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError("the actor failed once, on purpose")


DISTURBANCES = {"a killed worker": kill_a_worker, "an error of the actor": raise_an_error}


def play(config: Any, parallel: bool, rollouts: int, disturb: Callable[[], None] | None = None) -> Played:
    """Play the training environments of a configuration, and one rollout more before the clock runs."""
    from verl import DataProto

    config = config.changed({"agent_proxy.use_parallel_rollout": parallel})
    tokenizer = create_tokenizer(config)
    backend, played = create_backend(config, tokenizer), Played()
    try:
        answering = backend if disturb is None else Disturbed(backend, disturb)
        with LLMAgentProxy(config, answering, tokenizer) as proxy:
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


def compare(config: Any, rollouts: int) -> tuple[Played, Played, str]:
    """The ordinary rollouts, the parallel ones, and where they first differ."""
    ordinary, parallel = (play(config, parallel, rollouts) for parallel in (False, True))
    return ordinary, parallel, ordinary.seen.first_difference(parallel.seen)


def report(ordinary: Played, parallel: Played, difference: str) -> None:
    """Print times, metrics and the verdict."""
    mean = [sum(played.seconds) / len(played.seconds) for played in (ordinary, parallel)]
    print(f"{'':28}{'ordinary':>12}{'parallel':>12}")
    rows = [("seconds per rollout", *mean)]
    rows += [(f"  {part} (of the last)", ordinary.parts[part], parallel.parts[part]) for part in ordinary.parts]
    rows += [
        (name, value, parallel.metrics.get(name, float("nan")))
        for name, value in sorted(ordinary.metrics.items())
        if name.rpartition("/")[2] in SHOWN and "non-zero" not in name
    ]
    for name, one, other in rows:
        print(f"{name:28}{one:12.3f}{other:12.3f}")
    print(f"\nspeed-up: {mean[0] / mean[1]:.2f}")
    if parallel.reason is not None:
        print(f"the ordinary loop had to help: {parallel.reason}")
    print(
        f"DIFFERENT at {difference}" if difference else f"equal in all {len(ordinary.seen.facts)} facts of the rollouts"
    )


def check_errors(config: Any) -> list[str]:
    """Where rollouts in which something fails differ from undisturbed ones; prints a line for each."""
    ordinary, differences = play(config, False, 0), []
    for name, disturb in DISTURBANCES.items():
        disturbed = play(config, True, 0, disturb)
        difference = ordinary.seen.first_difference(disturbed.seen)
        print(f"{name}: {f'DIFFERENT at {difference}' if difference else 'equal'}; fell back: {disturbed.reason}")
        differences += [difference] if difference else []
    return differences


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 if the rollouts are equal, 1 if not, 2 for a bad configuration."""
    parser = argparse.ArgumentParser(description="Compare parallel rollouts with the ordinary ones.")
    parser.add_argument("--rollouts", type=int, default=2, help="rollouts whose time is taken (default: %(default)s)")
    add_config_arguments(parser, "base-parallel")
    arguments = parser.parse_intermixed_args(argv)
    try:
        config = load_config(arguments.config_name, arguments.overrides, arguments.config_path)
        result = compare(config, max(1, arguments.rollouts))
        print(f"{arguments.config_name}: {config.actor.backend}, {arguments.rollouts} rollouts each\n")
        report(*result)
        differences = check_errors(config)
    except RagenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if result[2] or differences else 0


def test_parallel_rollouts_are_equal_to_the_ordinary_ones(capsys: Any) -> None:
    """The command, with the shipped configuration, smaller; whatever fails."""
    small = [f"es_manager.{mode}.{key}" for mode in ("train", "val") for key in ("env_groups=4", "group_size=2")]
    small += [f"es_manager.{mode}.env_configs.n_groups=[2,2]" for mode in ("train", "val")]
    assert main(["--rollouts", "1", *small, "agent_proxy.parallel_n_jobs=2"]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out


if __name__ == "__main__":
    sys.exit(main())
