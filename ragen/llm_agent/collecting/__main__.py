"""``python -m ragen.llm_agent.collecting``: a rollout in rows by turn, by whatever actor the configuration names."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from ragen.llm_agent.config.command_line import FAILED, add_config_arguments, main_of

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.rollout.proxy import LLMAgentProxy

PROG = "python -m ragen.llm_agent.collecting"
SHOWN = ("success", "reward", "num_actions")


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = argparse.ArgumentParser(prog=prog, description=__doc__)
    add_config_arguments(top, default="parallel_envs")
    return top


def play(config: Any) -> int:
    """Play one rollout."""
    from verl import DataProto

    from ragen.llm_agent.backends import create_backend
    from ragen.llm_agent.rollout.command import create_tokenizer
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy

    tokenizer = create_tokenizer(config)
    backend = create_backend(config, tokenizer)
    try:
        with LLMAgentProxy(config, backend, tokenizer) as proxy:
            start = time.perf_counter()
            batch = proxy.rollout(DataProto(meta_info={"validate": False}))
            show(batch, proxy, time.perf_counter() - start)
            return 0 if proxy.parallel_envs else FAILED
    finally:
        backend.close()


main = main_of(parser, PROG, play)
"""Plays a rollout of the training environments, and shows what it gave; the exit code."""


def show(batch: DataProto, proxy: LLMAgentProxy, seconds: float) -> None:
    """Print what a rollout gave, by tag, and where its environments live."""
    from rich.console import Console
    from rich.table import Table

    metrics, console = batch.meta_info["metrics"], Console()
    tags = list(dict.fromkeys(batch.non_tensor_batch["tags"]))
    table = Table("tag", "rows", *SHOWN)
    for tag in tags:
        rows = sum(each == tag for each in batch.non_tensor_batch["tags"])
        table.add_row(tag, str(rows), *(_cell(metrics.get(f"{tag}/{name}")) for name in SHOWN))
    console.print(table)
    valid = metrics.get("episode/valid_action_ratio")
    told = f"; {valid:.1%} of the replies were valid" if valid is not None else ""
    console.print(f"{len(batch)} rows in {seconds:.1f} s{told}.")
    if proxy.train_parallel_envs is None:
        return
    console.print(proxy.train_parallel_envs.envs.gain().describe())


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
