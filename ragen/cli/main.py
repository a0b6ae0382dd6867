"""``ragen COMMAND ...``: finds and runs the command."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import ragen
from ragen.cli.commands import COMMANDS, GROUPS
from ragen.commands import FAILED, STOPPED, beside
from ragen.errors import MissingExtraError, did_you_mean
from ragen.output import command_output

USAGE_ERROR = 2
"""Exit code: the arguments are wrong."""

_WIDTH = max(map(len, COMMANDS))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        The command's exit code; 2 for an unknown command, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that `ragen check my_game:MyGame` finds local modules, like `python -m`
    try:
        with command_output():
            return _run(words)
    except MissingExtraError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:  # while a command is still starting; a running one handles it itself
        print("interrupted", file=sys.stderr)
        return STOPPED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: {error.strerror}: the output cannot be written.", file=sys.stderr)
        os._exit(FAILED)  # at its end, Python would write what is left once more


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    first = words[0] if words else "--help"
    if first in ("-h", "--help"):
        print(help_text())
        return 0
    if first in ("-V", "--version"):
        print(f"ragen {ragen.__version__}")
        return 0
    if first not in COMMANDS:
        print(f"error: {_unknown(first)}", file=sys.stderr)
        return USAGE_ERROR
    return COMMANDS[first].run(words[1:])


def help_text() -> str:
    """The text of ``ragen --help``."""
    listed = "\n\n".join(
        "\n".join([f"{group}:", *(beside(f"  {each.name:<{_WIDTH}}  ", each.summary) for each in commands)])
        for group, commands in GROUPS.items()
    )
    return (
        "usage: ragen COMMAND ...\n\n"
        f"{beside('', 'Rollouts of language-model agents, with environments stepped in worker processes.')}\n\n"
        f"{listed}\n\n"
        f"options:\n{beside('  -h, --help     ', 'show this, or the options of a command: ragen COMMAND --help')}\n"
        "  -V, --version  show the version\n\n"
        "Examples: ragen rollout --config-name _2_sokoban\n"
        "          ragen check my_package.echo:Echo\n"
        "          ragen play sokoban --seed 3"
    )


def _unknown(name: str) -> str:
    if name.startswith("-"):
        return f"ragen has no option {name}; options of a command follow its name. See ragen --help."
    meant = did_you_mean(name, COMMANDS) or f" There are {', '.join(COMMANDS)}."
    return f"there is no command {name!r}.{meant}"
