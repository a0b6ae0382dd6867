"""What lines of imports have imported, one after the other in one fresh program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def imported_needlessly(lines: Sequence[tuple[str, str]]) -> list[str]:
    """After each line, which of the modules named beside it are there, as the text of a list.

    None may have imported what a later one must not.
    """
    looks = [f"{line}; print([name for name in {absent.split()} if name in sys.modules])" for line, absent in lines]
    program = "\n".join(["import sys", *looks])
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
