"""Leftovers of a test run: processes, open files; and patience until they are gone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MARK = f"RAGEN_TESTED_BY={os.getpid()}"
PATIENCE = 60.0  # seconds; all of it takes milliseconds on a machine that is not busy
STAYING: dict[int, int] = {}  # supervisors that stay on purpose (warm_supervisors), with this process's end of each

os.environ["SPT_NOENV"] = "1"  # process titles leave the environment readable
os.environ["RAGEN_TESTED_BY"] = str(os.getpid())  # what tests start inherits it, whoever its parent becomes


def until(condition: Callable[[], object], patience: float = PATIENCE) -> bool:
    """Poll until something holds; whether it came to hold in time."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.01)
    return True


def processes() -> dict[int, str]:
    """All living descendants of this test run, orphans too: process ids with their titles.

    Not those that the standard library started for this process, its fork server and its resource tracker, which stay.
    """
    found = {}
    for pid, number in _running():
        if int(pid) == os.getpid() or (pid, number) in _STRANGERS:
            continue
        folder = f"/proc/{pid}"
        try:
            with open(f"{folder}/environ", "rb", buffering=0) as environ:
                variables = environ.read().split(b"\0")
            if MARK.encode() not in variables and _parent(folder) != os.getpid():
                if any(each.startswith(b"RAGEN_TESTED_BY=") for each in variables):  # another run's, to its end
                    _STRANGERS.add((pid, number))
                continue
            if int(pid) in STAYING:
                continue
            if _parent(folder) != os.getpid() or not _is_standard(Path(folder)):
                found[int(pid)] = _title(Path(folder))
        except OSError:  # it ended meanwhile
            continue
    return found


def _running() -> list[tuple[str, int]]:
    """All processes: their ids, with what tells one from another that has its id later."""
    if not os.path.isdir("/proc/self"):
        return []
    with os.scandir("/proc") as entries:
        return [(entry.name, entry.inode()) for entry in entries if entry.name.isdigit()]


def _parent(process: str) -> int:
    with open(f"{process}/stat", "rb", buffering=0) as stat:
        return int(stat.read().rpartition(b")")[2].split()[1])


def forgive_sandboxes() -> None:
    """Count no sandbox of an earlier test: in this process, they stay until what holds them is freed."""
    _STRANGERS.update(each for each in _running() if _is_sandbox(each[0]))


def _is_sandbox(pid: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "bwrap"
    return False


def _is_strange(pid: str) -> bool:
    with suppress(OSError):
        return int(pid) != os.getpid() and _parent(f"/proc/{pid}") != os.getpid()
    return False


_STRANGERS = {each for each in _running() if _is_strange(each[0])}  # older than all tests, so never left by one


def _is_standard(process: Path) -> bool:
    line = (process / "cmdline").read_bytes()
    known = (
        "multiprocessing.forkserver import",
        "multiprocessing.resource_tracker import",
        "loky.backend.resource_tracker",
    )
    return any(name.encode() in line for name in known)


def titled(prefix: str) -> list[int]:
    """Process ids of living descendants whose title begins so."""
    return [pid for pid, title in processes().items() if _is_titled(title, prefix)]


def _is_titled(title: str, prefix: str) -> bool:
    return title.startswith(prefix) or (len(title) == 15 and prefix.startswith(title))  # as much as the kernel keeps


def is_over(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def _title(process: Path) -> str:
    """The command line, unless the kernel's name alone is a title: a fork cannot always change the former."""
    name = (process / "comm").read_text().strip()
    line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
    return name if name.startswith("envlanes ") and not line.startswith("envlanes ") else line or name


def descriptors() -> set[tuple[str, str]]:
    """This process's open files, pipes and sockets, but for those to supervisors that stay."""
    found, staying = set(), {str(descriptor) for descriptor in STAYING.values()}
    for link in Path("/proc/self/fd").iterdir():
        try:
            if link.name not in staying:
                found.add((link.name, os.readlink(link)))
        except OSError:  # the folder's own
            continue
    return found


def named_memory() -> set[str]:
    """Shared memory that has a name and that no living process of others uses: ours, and whatever was left."""
    ours = {os.getpid(), *processes()}
    found = set(os.listdir("/dev/shm"))
    for folder in Path("/proc").iterdir() if found else ():
        if folder.name.isdigit() and int(folder.name) not in ours:
            try:
                maps = (folder / "maps").read_text()
            except OSError:  # it ended meanwhile, or is another user's
                continue
            found -= {line.rpartition("/dev/shm/")[2] for line in maps.splitlines() if "/dev/shm/" in line}
    return found


def kill_workers(stats: Iterable[Any], number: int = signal.SIGKILL) -> int:
    """Kill the workers of these rows, as an outsider does, and wait until they are gone; how many they were."""
    pids = [each.pid for each in stats if each.lane != "main" and each.pid is not None]
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, number)
    assert until(lambda: all(map(is_over, pids)))
    return len(pids)


def start_what_stays() -> None:
    """Start what executors need and leave: the standard library's fork server, resource tracker and shared memory."""
    from envlanes.temporary import temporary_folder
    from support.warm_supervisors import fork_server

    temporary_folder()
    fork_server()
    for method in ("forkserver", "spawn"):
        context: Any = multiprocessing.get_context(method)
        context.RawArray("b", 1)
        process = context.Process(target=os.getpid)
        process.start()
        process.join()
        process.close()


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fail where a process, a thread or a descriptor is left behind."""
    gc.collect()
    before = processes(), set(threading.enumerate()), descriptors()
    yield
    gc.collect()

    def left() -> dict[str, object]:
        new = {
            "processes": {pid: title for pid, title in processes().items() if pid not in before[0]},
            "threads": set(threading.enumerate()) - before[1],
            "descriptors": descriptors() - before[2],
        }
        return {kind: what for kind, what in new.items() if what}

    assert until(lambda: not left()), f"left behind: {left()}"
