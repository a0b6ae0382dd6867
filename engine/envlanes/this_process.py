"""Facts about this process: its processors, memory and title."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

OWN = "ENVLANES_OWN"  # environment variable of workers: names of those that they have of their own
NODE = "ENVLANES_NODE"  # environment variable of workers on other machines: the name of theirs


def node_name() -> str:
    """Name of the node of a cluster that this worker was started on; "" where it was started beside main."""
    return os.environ.get(NODE, "")


def usable_cpus() -> int:
    """Processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def set_title(title: str) -> None:
    """Show a title for this process in ``ps`` and ``py-spy``, where that can be done."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # no /proc, or one that cannot be written to
            Path("/proc/self/comm").write_text(title[:15])  # all that the kernel keeps
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(title)  # does nothing in a fork of a process that has changed its environment
