"""Trains an agent: ``python -m ragen.meta --config-name bandit``; see :mod:`ragen.meta.command`."""

import sys

from ragen.meta.command import main

if __name__ == "__main__":
    sys.exit(main())
