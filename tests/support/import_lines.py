"""The modules that an import brings along, in a fresh program."""

from __future__ import annotations

import subprocess
import sys


def imported_needlessly(line: str, absent: str) -> str:
    """Those of the absent modules that are there after the line, as the text of a list."""
    program = f"import sys; {line}; print([name for name in {absent.split()} if name in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()
