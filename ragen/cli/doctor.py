"""The command ``ragen doctor``: shows what is installed, what works on this machine, and how to fix problems.

Packages are looked up without importing them; a worker of each kind is started and ended.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import ragen
from ragen.commands import CommandParser, beside
from ragen.errors import install_command
from ragen.extras import EXTRAS, missing

PROG = "ragen doctor"
SOUND, UNSOUND = 0, 1
NEEDED = (
    *("numpy", "hydra-core", "omegaconf", "gymnasium", "openai", "jinja2", "pillow", "rich", "psutil", "cloudpickle"),
    *("setproctitle", "tqdm", "rapidfuzz"),
)
LITTLE_MEMORY, LITTLE_SHARED, FEW_FILES = 2e9, 256e6, 1024
_MARKS = {"ok": "ok", "note": "note", "bad": "MISSING"}


class Line(NamedTuple):
    """One finding.

    Attributes:
        topic: The topic.
        status: ``"ok"``; ``"note"``, worth knowing; ``"bad"``, nothing works without it.
        text: The finding.
        cure: A command or change that fixes it; "" if nothing needs fixing.
    """

    topic: str
    status: Literal["ok", "note", "bad"]
    text: str
    cure: str = ""


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    return CommandParser(
        prog=prog,
        description="Show what is installed, what works on this machine, what is missing, and how to fix it. "
        "The exit code is 1 if something essential is missing.",
        examples=(f"{prog} > doctor.txt  # for a bug report",),
    )


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command.

    Args:
        argv: Its arguments; None takes the process's own.
        prog: The program's name.

    Returns:
        The exit code: 0, or 1 if something essential is missing.
    """
    parser(prog).parse_args(argv)
    code = SOUND
    for look in LOOKS:
        for line in look():
            print(beside(f"{line.topic:<18}{_MARKS[line.status]:<8}", line.text))
            if line.cure:
                print(f"{'':<26}-> {line.cure}")
            code = UNSOUND if line.status == "bad" else code
    return code


def versions() -> Iterator[Line]:
    """Python, this package, and its dependencies."""
    yield Line("ragen", "ok", f"{ragen.__version__} in {Path(ragen.__file__).parent}")
    yield Line("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    for package in NEEDED:
        if (version := installed(package)) is None:
            yield Line(package, "bad", "not installed", install_command())
        else:
            yield Line(package, "ok", version)


def extras() -> Iterator[Line]:
    """Optional dependencies by extra."""
    for name, extra in EXTRAS.items():
        if lacking := missing(name):
            text = f"not installed: {', '.join(lacking)}; required to {extra.purpose}"
            yield Line(f"[{name}]", "note", text, install_command(name))
        else:
            yield Line(f"[{name}]", "ok", f"installed: {', '.join(extra.packages)}")
    if not os.environ.get("OPENAI_API_KEY"):
        cure = "export OPENAI_API_KEY=..., unless your server needs no key"
        yield Line("OPENAI_API_KEY", "note", "not set", cure)
    else:
        yield Line("OPENAI_API_KEY", "ok", "set")


def installed(package: str) -> str | None:
    """The version of an installed package, which is not imported; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> Iterator[Line]:
    """Processors, memory, and access to ``/proc``."""
    import psutil

    from ragen.parallel.settings import default_workers
    from ragen.parallel.this_process import usable_cpus

    usable, there = usable_cpus(), os.cpu_count() or 1
    yield Line("processors", "ok", f"{usable} of {there} usable; es_manager.max_workers: null is {default_workers()}")
    free, whole = psutil.virtual_memory().available, psutil.virtual_memory().total
    cure = "fewer environments, or a smaller model" if free < LITTLE_MEMORY else ""
    yield Line("memory", "note" if cure else "ok", f"{free / 1e9:.1f} of {whole / 1e9:.1f} GB free", cure)
    yield from _shared_memory()
    yield _proc()
    yield from _files()


def _shared_memory() -> Iterator[Line]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    cure = "docker run --shm-size=2g ..., for fast transfer of large observations" if free < LITTLE_SHARED else ""
    yield Line("/dev/shm", "note" if cure else "ok", f"{free / 1e9:.1f} GB free", cure)


def _proc() -> Line:
    if Path("/proc/self/stat").exists():
        return Line("/proc", "ok", "available: processes started by an environment are found and ended with it")
    text = "not available: processes started by an environment may outlive a killed worker"
    return Line("/proc", "note", text, "only Linux with /proc mounted is tested; see docs/lanes.md")


def _files() -> Iterator[Line]:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cure = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}" if 0 <= soft < FEW_FILES else ""
    yield Line("open files", "note" if cure else "ok", f"at most {soft if soft >= 0 else 'any number'}", cure)


def workers() -> Iterator[Line]:
    """The available kinds of workers, and whether one starts."""
    import multiprocessing

    from ragen.parallel.settings import START_METHODS

    methods = multiprocessing.get_all_start_methods()
    can = [method for method in START_METHODS if method in methods]
    text = f"{', '.join(can) or 'none'} of {', '.join(START_METHODS)}"
    yield Line("start methods", "ok" if can else "bad", text, "" if can else "es_manager.use_multiprocessing=false")
    yield _process_kind()
    for backend in ("process", "executor"):
        yield _started(backend)


def _process_kind() -> Line:
    from ragen.parallel.kinds.process.kind import unavailable

    why = unavailable()
    if not why:
        return Line("workers", "ok", "process, executor: everything that docs/lanes.md guarantees")
    return Line("workers", "note", f"executor only, since process is not available here: {why}")


def _started(backend: str) -> Line:
    """Whether a worker of a kind can reset an environment, and how fast."""
    from ragen.env.registry import resolve_env
    from ragen.errors import RagenError
    from ragen.parallel import EnvEngine, EnvFailed, EnvSpec, Settings

    topic, start = f"worker: {backend}", time.perf_counter()
    env_class, config_class = resolve_env("bandit")
    spec = EnvSpec.of(env_class, config_class() if config_class else None, tag="doctor")
    settings = Settings(use_lanes=True, max_workers=1, backend=backend, startup_timeout=30.0, reset_timeout=30.0)
    try:
        with EnvEngine([spec], settings) as engine:
            value = engine.reset({0: 1})[0]
            home = engine.home(0)
    except RagenError as error:
        return Line(topic, "note", f"does not start: {error}", "es_manager.use_multiprocessing=false needs no workers")
    took = time.perf_counter() - start
    if isinstance(value, EnvFailed) or home == "main":
        return Line(topic, "note", f"could not reset an environment, which was in {home}: {value}")
    return Line(topic, "ok", f"started and reset an environment in {took:.2f} s")


def sandboxes() -> Iterator[Line]:
    """Whether sandboxes for programs and commands work, and what is missing."""
    from ragen.env import sandbox
    from ragen.env.sandbox import PROGRAMS, SHELL
    from ragen.errors import SandboxError

    for profile, env_types in ((PROGRAMS, "code, deepcoder"), (SHELL, "terminal")):
        topic = f"sandbox: {profile.name}"
        if lacks := sandbox.missing(profile):
            names, cures = zip(*(lack.partition(": ")[::2] for lack in lacks), strict=True)
            text = f"not available, so {env_types} cannot be played; missing: {', '.join(names)}"
            yield Line(topic, "note", text, "; ".join(dict.fromkeys(cures)))
            continue
        try:
            sandbox.Sandbox(profile).close()
        except SandboxError as error:
            yield Line(topic, "note", f"not available, so {env_types} cannot be played: {error}")
        else:
            yield Line(topic, "ok", f"started, for {env_types}")


def browsers() -> Iterator[Line]:
    """Whether a sandboxed browser is available; it is not started, since that takes seconds."""
    from ragen.env.miniwob import browser

    if lacks := browser.missing():
        names, cures = zip(*(lack.partition(": ")[::2] for lack in lacks), strict=True)
        text = f"not available, so miniwob cannot be played; missing: {', '.join(names)}"
        yield Line("browser", "note", text, "; ".join(dict.fromkeys(cures)))
    else:
        yield Line("browser", "ok", f"{browser.browser_of(None)}, for miniwob")


LOOKS: tuple[Callable[[], Iterator[Line]], ...] = (versions, extras, machine, workers, sandboxes, browsers)
