"""``python -m ragen.tools.cluster``: the command ``ragen cluster``, which lives in :mod:`ragen.cli.cluster`."""

import sys

from ragen.cli.cluster import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m ragen.tools.cluster"))
