"""``python -m ragen.parallel.replay``: see :mod:`ragen.tools.replay`."""

from __future__ import annotations

import sys

from ragen.tools.replay import main

if __name__ == "__main__":
    sys.exit(main())
