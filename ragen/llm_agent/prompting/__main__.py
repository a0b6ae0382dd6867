"""The command ``python -m ragen.llm_agent.prompting``: prompts as a file.

``import CHECKOUT OUT.yaml`` writes the prompts of a RAGEN checkout, ``show [OUT.yaml]`` those of this package. The file
is used by a configuration with ``agent_proxy.prompts: OUT.yaml``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ragen.commands import CommandParser, refusing
from ragen.errors import ConfigError
from ragen.llm_agent.prompting.checkout import read_prompts
from ragen.llm_agent.prompting.templates import DEFAULT_PROMPTS, PromptTemplate


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments; None for the process's.

    Returns:
        The exit code: 0, or 2 if the checkout cannot be read or the file cannot be written.
    """
    parser = CommandParser(prog="python -m ragen.llm_agent.prompting", description="Prompts as a file.")
    commands = parser.add_subparsers(dest="command", required=True)
    imported = commands.add_parser("import", help="write the prompts of a RAGEN checkout; its source is not run")
    imported.add_argument("checkout", help="the folder with ragen/ and config/")
    imported.add_argument("out", help="the file to write, such as ragen_prompts.yaml")
    shown = commands.add_parser("show", help="write this package's prompts, as a starting point for your own")
    shown.add_argument("out", nargs="?", help="the file to write; by default, they are printed")
    arguments = parser.parse_args(argv)
    if arguments.command == "import":
        return _import(arguments.checkout, arguments.out)
    return _show(arguments.out)


def _import(checkout: str, out: str) -> int:
    template = read_prompts(checkout)
    _write(template, out, f"imported from {Path(checkout).expanduser().resolve().name}")
    print(
        f"{out}: the prompts of {checkout}, with the instructions of {len(template.instructions)} tags and the "
        f"instruction in the {template.instruction_in} message. Use them with agent_proxy.prompts={out}"
    )
    return 0


def _show(out: str | None) -> int:
    if out is None:
        print(DEFAULT_PROMPTS.dump(), end="")
    else:
        _write(DEFAULT_PROMPTS, out, "")
        print(f"{out}: this package's prompts. Use them with agent_proxy.prompts={out}")
    return 0


def _write(template: PromptTemplate, out: str, source: str) -> None:
    path = Path(out).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.dump(source), "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}.") from error


if __name__ == "__main__":
    sys.exit(main())
