"""``python -m ragen.env play TYPE [--seed N] [--image FILE.png] [key=value ...]``: play an environment by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ragen.commands import CommandParser, refusing
from ragen.env.keys import typed
from ragen.env.play import build_env, play
from ragen.env.registry import REGISTERED_ENVS

PROG = "python -m ragen.env"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line; the word ``play`` is its first argument unless it is in the program's name already."""
    top = CommandParser(
        prog=prog,
        description="Play one environment in the terminal, or from a pipe.",
        epilog=f"Example: {prog}{' play' if prog == PROG else ''} sokoban --seed 3 dim_x=8",
    )
    if prog == PROG:
        top.add_argument("command", choices=("play",), help="what to do")
    top.add_argument("type", help=f"{', '.join(sorted(REGISTERED_ENVS))}, or package.module:Class")
    top.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="a key of env_config, such as dim_x=8"
    )
    top.add_argument("--seed", type=int, help="the level to play; random by default")
    top.add_argument("--mode", choices=("train", "val", "test"), default="train", help="split of the data")
    top.add_argument(
        "--image", type=Path, metavar="FILE.png", help="save an image of the state to this file after every action"
    )
    return top


@refusing
def main(arguments: list[str] | None = None, prog: str = PROG) -> int:
    """Run the command line.

    Args:
        arguments: What follows the program's name; None takes it from the command line.
        prog: The program's name.

    Returns:
        0, or 2 after one sentence on standard error that says what is wrong with the arguments.
    """
    options = parser(prog).parse_intermixed_args(arguments)  # options may stand anywhere
    try:
        env = build_env(options.type, options.settings)
        try:
            with typed(sys.stdin, sys.stdout) as lines:
                play(env, options.type, lines, sys.stdout, seed=options.seed, mode=options.mode, image=options.image)
        finally:
            env.close()
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
