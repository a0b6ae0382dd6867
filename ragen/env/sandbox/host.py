"""The worker's side of a sandbox: its requirements, its start, and requests for runs."""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ragen.env.resources import Lease, worker_resource
from ragen.env.sandbox import inside
from ragen.env.sandbox.system_calls import compile_filter, load_library
from ragen.errors import ResourceError, SandboxError

NOBODY = 65534  # the user of a sandbox started by root, since RLIMIT_NPROC does not apply to root
INSIDE = 1000
STARTING = 60.0  # seconds that a sandbox may take to start
FIXED_BYTES = 1 << 16  # size of the file in place of /dev/random and /dev/urandom

Reason = Literal["", "time", "memory", "processes", "output", "files", "waits", "broken"]


class RunLimits(NamedTuple):
    """The limits of a run.

    Attributes:
        cpu_seconds: Processor time of all its processes together, in seconds.
        memory_mb: Address space of each process, and resident memory of all together, in MiB.
        disk_mb: Total size of its files, in MiB.
        files_at_most: Number of files, including those that exist at the start.
        processes: Number of simultaneous processes.
        output_bytes: Size of its output, in bytes.
        wait_seconds: Seconds, all together, during which none of its processes runs.
        wall_seconds: Wall-clock seconds; far above the others.
    """

    cpu_seconds: float = 2.0
    memory_mb: int = 256
    disk_mb: int = 16
    files_at_most: int = 4096
    processes: int = 64
    output_bytes: int = inside.MOST_ANSWER
    wait_seconds: float = 2.0
    wall_seconds: float = 120.0


class Profile(NamedTuple):
    """A kind of sandbox.

    Attributes:
        name: Its name in messages.
        commands: Whether it runs a shell and the system's commands; otherwise it runs Python programs, which cannot
            start processes.
        hidden: A folder of the machine that is not in the sandbox, with what belongs there.
    """

    name: str
    commands: bool
    hidden: str = ""


PROGRAMS, SHELL = Profile("programs", False), Profile("shell", True)

STOPPED = {
    "time": "it used more processor time than allowed",
    "memory": "it used more memory than allowed",
    "output": "it printed more than allowed",
    "files": "it left more files than allowed, with their holes and links, or folders too deep",
    "waits": "it waits for something that does not come",
    "processes": "it started too many processes",
    "broken": "it broke its sandbox",
}
"""Sentences for the reasons to stop a run."""


class Ended(NamedTuple):
    """The result of a run.

    Attributes:
        stopped: The limit it exceeded, or "". The changes of a stopped run are discarded.
        status: Its exit code, or the negated number of the signal that ended it.
        header: The whole report.
        body: Its output, followed by the contents of changed files.
    """

    stopped: Reason
    status: int
    header: dict[str, Any]
    body: bytes


def missing(profile: Profile) -> list[str]:
    """Missing parts of this machine for such a sandbox, each with the command that installs it; nothing is started."""
    lacks = []
    if sys.platform != "linux":
        return [f"Linux: this is {sys.platform}, which has no namespaces to isolate a program"]
    if shutil.which("bwrap") is None:
        lacks.append("bubblewrap: apt-get install bubblewrap")
    try:
        load_library()
    except SandboxError as error:
        lacks.append(str(error))
    if _interpreter() is None:
        lacks.append("a Python that every user can read: apt-get install python3")
    if profile.commands:
        which = partial(shutil.which, path="/usr/bin:/bin")
        packages = {"bash": "bash", "sqlite3": "sqlite3", "find": "findutils"}
        lacks += [
            f"{command}: apt-get install {package}" for command, package in packages.items() if not which(command)
        ]
        if faketime() is None:
            lacks.append("libfaketime, which stops the clock: apt-get install libfaketime")
    return lacks


def require_sandbox(profile: Profile) -> None:
    """Check the requirements of a sandbox; nothing is started.

    Raises:
        SandboxError: Something is missing.
    """
    if lacks := missing(profile):
        raise SandboxError(f"A sandbox for {profile.name} cannot run here. Missing: {'; '.join(lacks)}.")


def faketime() -> str | None:
    """The library that stops the clock, preloaded into the commands of a shell."""
    return next(iter(sorted(glob.glob("/usr/lib/*/faketime/libfaketime.so.1"))), None)


def _interpreter() -> str | None:
    """The Python to run inside: this one, or the system's if other users cannot read this one."""
    for candidate in (getattr(sys, "_base_executable", sys.executable), "/usr/local/bin/python3", "/usr/bin/python3"):
        path = os.path.realpath(candidate)
        if os.path.exists(path) and all(_open_to_all(parent) for parent in (Path(path), *Path(path).parents)):
            return path
    return None


def _open_to_all(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXOTH)


@lru_cache
def _arguments(profile: Profile) -> list[str]:
    """Bubblewrap's command line: a read-only root without installed packages, homes or a network.

    Installed packages are hidden because data sets are installed as packages, and so is this package.
    """
    python = _interpreter()
    assert python is not None
    line = ["bwrap", "--unshare-all", "--unshare-user", "--new-session", "--hostname", "sandbox", "--cap-add", "ALL"]
    line += ["--uid", str(INSIDE), "--gid", str(INSIDE), "--clearenv"]
    for name, value in (("PYTHONHASHSEED", "0"), ("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("PATH", "/usr/bin:/bin")):
        line += ["--setenv", name, value]
    for folder in _trees(profile, python):
        line += ["--ro-bind", folder, folder]
    for folder in ("/lib", "/lib64", "/bin", "/sbin"):
        if os.path.islink(folder):
            line += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            line += ["--ro-bind", folder, folder]
    if profile.commands and os.path.isdir("/etc/alternatives"):  # awk and others are links to it
        line += ["--ro-bind", "/etc/alternatives", "/etc/alternatives"]
    bound = [os.path.realpath(folder) for folder in _trees(profile, python)]
    own = [profile.hidden] if any(profile.hidden.startswith(f"{folder}/") for folder in bound) else []
    for hidden in (*_packages(profile, python), *own):
        line += ["--tmpfs", hidden, "--remount-ro", hidden]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/run", "/tmp", "/etc", inside.HOME):
        line += ["--dir", folder]
    for name, (path, _) in _files().items():
        line += ["--ro-bind-data", f"{{{name}}}", path]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    plain = [python, "-B", "-s", "-S", "-P"]
    return [*line, "--", *plain, "-c", _FIX_ADDRESSES, *plain, _SCRIPT]


def _trees(profile: Profile, python: str) -> list[str]:
    prefix = os.path.dirname(os.path.dirname(python))
    if profile.commands:
        return ["/usr"] if python.startswith("/usr/") else ["/usr", prefix]
    libraries = [folder for folder in ("/usr/lib", "/usr/lib64", "/usr/lib32") if os.path.isdir(folder)]
    own = [python] + ([] if prefix == "/usr" else [f"{prefix}/lib"])
    return [*libraries, *own]


def _packages(profile: Profile, python: str) -> list[str]:
    """Folders of installed packages below the bound folders."""
    found: set[str] = set()
    for tree in _trees(profile, python):
        for pattern in ("lib/python3*/*-packages", "local/lib/python3*/*-packages", "python3*/*-packages"):
            found.update(glob.glob(f"{tree}/{pattern}"))
    if profile.commands and not python.startswith("/usr/local"):
        found = {folder for folder in found if not folder.startswith("/usr/local")} | {"/usr/local"}
    return sorted(folder for folder in found if os.path.isdir(folder) and not os.path.islink(folder))


_SCRIPT = "/run/sandbox.py"
# Addresses are randomized at exec, so a small program turns randomization off and then executes the real one.
_FIX_ADDRESSES = """\
import ctypes, os, resource, sys
ctypes.CDLL(None).personality(0x0040000)  # ADDR_NO_RANDOMIZE
resource.setrlimit(resource.RLIMIT_STACK, (64 << 20, 64 << 20))
os.execv(sys.argv[1], sys.argv[1:])
"""


@lru_cache
def _files() -> dict[str, tuple[str, bytes]]:
    """Files that replace the machine's own in the sandbox, by name: path and contents."""
    users = f"root:x:0:0::/:/bin/false\nagent:x:{INSIDE}:{INSIDE}::{inside.HOME}:/bin/bash\n"
    return {
        "random": ("/dev/random", hashlib.shake_256(b"random").digest(FIXED_BYTES)),
        "urandom": ("/dev/urandom", hashlib.shake_256(b"urandom").digest(FIXED_BYTES)),
        "users": ("/etc/passwd", users.encode()),
        "groups": ("/etc/group", f"root:x:0:\nagent:x:{INSIDE}:\n".encode()),
        "script": (_SCRIPT, Path(inside.__file__).read_bytes()),
    }


class Sandbox:
    """A sandbox that runs one job at a time; it ends with its worker."""

    def __init__(self, profile: Profile) -> None:
        """Start a sandbox and wait until it is ready.

        Raises:
            SandboxError: It cannot run here; the message names what is missing.
        """
        require_sandbox(profile)
        self.profile, self.started = profile, time.time()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = self._start(theirs)
        try:
            allowed = base64.b64encode(compile_filter(profile.commands)).decode()
            self._control.settimeout(STARTING)
            self._control.send(json.dumps({"filter": allowed, "warm": not profile.commands}).encode())
            if self._control.recv(16) != b"ready":
                raise EOFError("it ended as it started")
        except (OSError, EOFError) as error:
            said = self._said()
            self.close()
            raise SandboxError(
                f"bubblewrap cannot create a sandbox here: {said or error}. It needs user namespaces: "
                "sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0; in a "
                "container, --security-opt seccomp=unconfined --security-opt systempaths=unconfined."
            ) from error

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        files = {name: _in_memory(name, data) for name, (_, data) in _files().items()}
        try:
            line = [
                each.format(**files) if each[:1] == "{" and each[-1:] == "}" else each
                for each in _arguments(self.profile)
            ]
            user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
            return subprocess.Popen(
                line,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                pass_fds=list(files.values()),
                **user,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._control.close()
            raise SandboxError(f"bubblewrap cannot be started: {error}.") from error
        finally:
            for descriptor in files.values():
                os.close(descriptor)

    def _said(self) -> str:
        """End bubblewrap and return its error output."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._control.close()
            assert self._process.stderr is not None
            self._process.kill()
            return self._process.stderr.read(2000).decode("utf-8", "replace").strip()
        return ""

    @property
    def alive(self) -> bool:
        """Whether the sandbox can run jobs."""
        return self._process.poll() is None

    def run(self, job: dict[str, Any], limits: RunLimits, body: bytes = b"") -> Ended:
        """Run a job.

        Args:
            job: ``kind`` and the other keys that :mod:`~ragen.env.sandbox.inside` reads.
            limits: The limits of the run.
            body: The contents of its files, concatenated.

        Raises:
            SandboxError: The sandbox had ended before the run, or could not prepare it.
        """
        with self._lock:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    self._hand_over(theirs)
                ours.settimeout(1.5 * limits.wall_seconds)  # the keeper stops a run before
                try:
                    inside.send_frame(ours, {**limits._asdict(), **job}, body)
                    header, sent = inside.receive_frame(ours)
                except (EOFError, OSError):  # the program counts as the cause: a run must not escape its verdict
                    self.close()
                    return Ended("broken", -signal.SIGKILL, {}, b"")
        if "failed" in header:
            self.close()
            raise SandboxError(f"the sandbox could not prepare a run: {header['failed']}")
        status = os.waitstatus_to_exitcode(header["status"])
        return Ended(header["stopped"], status, header, sent)

    def _hand_over(self, link: socket.socket) -> None:
        try:
            socket.send_fds(self._control, [b"run"], [link.fileno()])
        except OSError as error:
            raise SandboxError(f"the sandbox has ended: {error}.") from error

    def close(self) -> None:
        """End the sandbox and everything in it; may be called twice."""
        self._control.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _in_memory(name: str, data: bytes) -> int:
    descriptor = os.memfd_create(name)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class InSandbox:
    """An environment that runs jobs in a sandbox, which all environments of a process share.

    Attributes:
        profile: The kind of sandbox.
    """

    profile: Profile
    _lease: tuple[int, Lease[Sandbox]] | None = None

    def run_inside(self, job: dict[str, Any], limits: RunLimits, body: bytes = b"") -> Ended:
        """Run a job; see :meth:`Sandbox.run`."""
        lease = self.hold_sandbox()
        try:
            return lease.value.run(job, limits, body)
        except SandboxError:
            lease.discard()
            raise

    def hold_sandbox(self) -> Lease[Sandbox]:
        """A lease of this process's sandbox, which is started if there is none or it has ended."""
        if self._lease is not None:
            pid, lease = self._lease
            try:
                if pid == os.getpid() and lease.value.alive:
                    return lease
                if pid == os.getpid():
                    lease.discard()
            except ResourceError:  # another environment has found it ended
                pass
        profile = self.profile
        lease = worker_resource(("sandbox", profile), lambda: Sandbox(profile), Sandbox.close)
        self._lease = os.getpid(), lease
        return lease

    def close(self) -> None:
        """Release the sandbox; it ends with the last environment that uses it."""
        if self._lease is not None:
            pid, lease = self._lease
            self._lease = None
            if pid == os.getpid():
                lease.release()
