"""``python -m ragen`` is the command ``ragen``: see :mod:`ragen.cli`."""

import sys

if __name__ == "__main__":
    try:
        from ragen.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # while that is imported; later ones are handled there
        print("interrupted", file=sys.stderr)
        sys.exit(130)
