"""``python -m ragen.cage2 search|compare ...``: search for a workflow, or compare the simulators."""

import sys
from collections.abc import Sequence

USAGE = """usage: python -m ragen.cage2 search [key=value ...]   search for the order of fixing that pays most
       python -m ragen.cage2 compare [--episodes N]   compare the embedded simulator with CAGE 2"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command by its name; its exit status, 2 where there is none of that name."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or [""]
    if name == "search":
        from ragen.cage2.search_command import main as search

        return search(rest)
    if name == "compare":
        from ragen.cage2.compare import main as compare

        return compare(rest)
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
