"""The command line of ``ragen diagnose``; what it does is imported when it is done, since it needs numpy."""

from __future__ import annotations

import argparse
from pathlib import Path

from ragen.commands import CommandParser, command

PROG = "ragen diagnose"
SAMPLES = 64


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Show why trajectories failed, which of them to look at, and whether the model's thoughts depend "
        "on its prompts. Works on finished and on running rollouts, evaluations and trainings.",
        examples=(
            f"{prog} outputs/evaluate/NAME",
            f"{prog} RUN --scorer Qwen/Qwen2.5-0.5B-Instruct",
            f"{prog} RUN actor.base_url=http://localhost:8000/v1 actor.tokenizer=NAME",
        ),
    )
    top.add_argument(
        "run", type=Path, metavar="RUN", help="the output_dir of a rollout or a training, or a rollouts.jsonl"
    )
    top.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="keys of actor: a server that scores prompts (actor.base_url, actor.model, actor.tokenizer), or "
        "actor.hf.device and the like for --scorer",
    )
    top.add_argument("--scorer", metavar="MODEL", help="a transformers model, a folder or the hub's name")
    top.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help="maximum number of pairs in a sample (default: 64)"
    )
    top.add_argument("--seed", type=int, default=0, metavar="N", help="decides which pairs are drawn (default: 0)")
    top.add_argument(
        "--scanner",
        action="append",
        default=[],
        metavar="PACKAGE.MODULE:FUNCTION",
        help="one more scanner; may be given several times",
    )
    top.add_argument("--json", action="store_true", help="print everything as JSON, with all findings")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0 whatever is found, or 2 where there is nothing to look at, or no scorer where one was named.
    """
    from ragen.llm_agent.evaluation.diagnose import run

    return run(options, prog)
