"""``python -m ragen.retrofit``."""

import sys

from ragen.retrofit.command import main

if __name__ == "__main__":
    sys.exit(main())
