"""``python -m ragen.cage2 search|compare ...``: search for a workflow, or compare the simulators."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from ragen.commands import CommandParser

PROG = "python -m ragen.cage2"
COMMANDS = {"search": "ragen.cage2.search_command", "compare": "ragen.cage2.compare"}
"""Each command's module, which has ``main(argv, prog)``."""


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Search for the best order of fixing hosts, or compare the embedded simulator with CAGE 2.",
        examples=(f"{prog} search n_workflows=6", f"{prog} compare --episodes 20", f"{prog} search --help"),
    )
    top.add_argument("command", choices=COMMANDS, help="what to do; its own arguments follow")
    return top


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run a command by its name; returns its exit status, 2 for an unknown name."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = parser(prog).parse_args(words[:1]).command
    code: int = import_module(COMMANDS[name]).main(words[1:], f"{prog} {name}")
    return code


if __name__ == "__main__":
    sys.exit(main())
