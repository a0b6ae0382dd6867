"""The command ``python -m ragen.llm_agent.prompts [OUT.yaml]``: this package's prompts, as a start for your own.

The file is used by a configuration with ``agent_proxy.prompts: OUT.yaml``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ragen.commands import CommandParser, refusing
from ragen.errors import ConfigError
from ragen.llm_agent.prompts.templates import DEFAULT_PROMPTS


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments; None for the process's.

    Returns:
        The exit code: 0, or 2 if the file cannot be written.
    """
    parser = CommandParser(prog="python -m ragen.llm_agent.prompts", description="Write this package's prompts.")
    parser.add_argument("out", nargs="?", help="the file to write; by default, they are printed")
    out = parser.parse_args(argv).out
    if out is None:
        print(DEFAULT_PROMPTS.dump(), end="")
        return 0
    path = Path(out).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DEFAULT_PROMPTS.dump(), "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}.") from error
    print(f"{out}: this package's prompts. Use them with agent_proxy.prompts={out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
