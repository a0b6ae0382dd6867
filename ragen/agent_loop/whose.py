"""Which process somebody is, and whether that process is still there.

A process id alone does not say: ids are used again, and another machine or container has the same ones. With the
machine's boot, the namespace and the start of the process it is one process for ever. Where the system does not tell
(no ``/proc``), nobody can be seen, and signs of life alone count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_START = 19  # of the fields after the command's name: when the process began


class ProcessId(NamedTuple):
    """A process, as nobody else is.

    Attributes:
        pid: Its id, in its namespace.
        started: When it began, in clock ticks since the boot; "" where that cannot be known.
        machine: The machine's boot and the namespace.
    """

    pid: int
    started: str
    machine: str


def this_process() -> ProcessId:
    """The process that asks."""
    pid = os.getpid()
    return ProcessId(pid, _started(pid) or "", _machine())


def can_see(process: ProcessId) -> bool:
    """Whether this process could tell whether that one runs."""
    return bool(process.started) and process.machine == _machine()


def is_running(process: ProcessId) -> bool:
    """Whether a process that can be seen is there, and is no zombie."""
    return _started(process.pid) == process.started


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process began; None if there is none, or it has ended and was only not waited for yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[_START]
