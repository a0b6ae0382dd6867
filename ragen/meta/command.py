"""``python -m ragen.meta --config-name bandit [key=value ...]``: trains an agent that learns how to learn."""

from __future__ import annotations

import argparse

from ragen.commands import STOPPED, CommandParser, command
from ragen.meta.settings import load_settings

PROG = "python -m ragen.meta"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Train an agent that learns how to learn, on many tasks at once.",
        examples=(f"{prog} --config-name bandit seed=1",),
    )
    top.add_argument("--config-name", default="bandit", help="a file of config/meta, or any .yaml (default: bandit)")
    top.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="such as seed=1, ppo.lr=3e-4")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command; returns its exit status: 0, 2 for an invalid configuration, 130 if it was stopped."""
    settings = load_settings(options.config_name, options.overrides)
    from ragen.meta.training import train

    def report(metrics: dict[str, float]) -> None:
        print(", ".join(f"{name} {value:.4g}" for name, value in metrics.items()), flush=True)

    try:
        train(settings, report)
    except KeyboardInterrupt:
        return STOPPED
    finally:
        print(f"written to {settings.output_dir}: metrics.jsonl, agent.pt")
    return 0
