"""The command ``ragen doctor``: what is installed, and what works on this machine.

Packages are looked up without importing them; a worker of each kind is started and ended.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import ragen
from ragen.commands import CommandParser, beside
from ragen.errors import DISTRIBUTION, install_command
from ragen.extras import EXTRAS, missing

PROG = "ragen doctor"
SOUND, UNSOUND = 0, 1


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    return CommandParser(
        prog=prog,
        description="Show what is installed, and what works on this machine. The exit code is 1 if a required package "
        "is missing.",
        examples=(f"{prog} > doctor.txt  # for a bug report",),
    )


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command.

    Args:
        argv: Its arguments; None takes the process's own.
        prog: The program's name.

    Returns:
        The exit code: 0, or 1 if a required package is missing.
    """
    parser(prog).parse_args(argv)
    lacking = [name for name in required() if installed(name) is None]
    for topic, text in facts():
        print(beside(f"{topic:<22}", text))
    if lacking:
        print(f"MISSING: {', '.join(lacking)}. {install_command()}")
    return UNSOUND if lacking else SOUND


def required() -> list[str]:
    """The packages that this one requires."""
    try:
        wanted = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return []
    return [re.split(r"[^\w.-]", each)[0] for each in wanted if "extra ==" not in each]


def installed(package: str) -> str | None:
    """The version of an installed package, which is not imported; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def facts() -> Iterator[tuple[str, str]]:
    """Topics, and what was found."""
    yield "ragen", f"{ragen.__version__} in {Path(ragen.__file__).parent}"
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.release()}"
    yield "packages", ", ".join(f"{name} {version}" for name in required() if (version := installed(name)))
    yield "extras installed", " ".join(f"[{name}]" for name in EXTRAS if not missing(name)) or "none"
    for name, extra in EXTRAS.items():
        if lacking := missing(name):
            yield f"  without [{name}]", f"{', '.join(lacking)}, to {extra.purpose}: {install_command(name)}"
    yield from _machine()
    for backend in ("process", "executor"):
        yield f"worker: {backend}", _started(backend)
    yield from _sandboxes()


def _machine() -> Iterator[tuple[str, str]]:
    import psutil

    from envlanes.this_process import usable_cpus

    memory, shared = psutil.virtual_memory(), Path("/dev/shm")
    yield "processors", f"{usable_cpus()} of {os.cpu_count()} usable"
    yield "memory", f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"
    if shared.is_dir():
        yield "/dev/shm", f"{shutil.disk_usage(shared).free / 1e9:.1f} GB free"
    if not Path("/proc/self/stat").exists():
        yield "/proc", "not available: processes that an environment starts may outlive a killed worker"


def _started(backend: str) -> str:
    """Time for a worker of a kind to start and to reset an environment, or the reason for failing."""
    from envlanes import Engine, EnvSpec, Settings
    from ragen.env.registry import resolve_env
    from ragen.errors import RagenError

    start = time.perf_counter()
    env_class, config_class = resolve_env("bandit")
    spec = EnvSpec.of(env_class, config_class() if config_class else None, tag="doctor")
    settings = Settings(use_lanes=True, max_workers=1, backend=backend, startup_timeout=30.0, reset_timeout=30.0)
    try:
        with Engine([spec], settings) as engine:
            engine.reset({0: 1})
            home = engine.home(0)
    except RagenError as error:
        return f"does not start: {error}"
    took = time.perf_counter() - start
    return "does not start" if home == "main" else f"started and reset an environment in {took:.2f} s"


def _sandboxes() -> Iterator[tuple[str, str]]:
    from ragen.env.miniwob import browser
    from ragen.env.sandbox import host as sandbox
    from ragen.errors import SandboxError

    for profile, env_types in ((sandbox.PROGRAMS, "code, deepcoder"), (sandbox.SHELL, "terminal")):
        lacks = sandbox.missing(profile)
        try:
            if not lacks:
                sandbox.Sandbox(profile).close()
        except SandboxError as error:
            lacks = [str(error)]
        yield f"sandbox: {profile.name}", f"{env_types}: {'; '.join(lacks) or 'works'}"
    yield "browser", f"miniwob: {'; '.join(browser.missing()) or browser.browser_of(None)}"
