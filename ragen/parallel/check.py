"""``python -m ragen.parallel.check``: see :mod:`ragen.tools.check`."""

from __future__ import annotations

import sys

from ragen.tools.check import main

if __name__ == "__main__":
    sys.exit(main())
