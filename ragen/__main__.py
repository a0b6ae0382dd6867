"""``python -m ragen`` is the command ``ragen``: see :mod:`ragen.cli`."""

import sys

from ragen.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
