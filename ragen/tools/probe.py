"""What can only be seen inside the worker that an environment is checked in.

A :class:`Probe` stands among the worker's environments and is called as they are, so that whatever it does has a
deadline. It is there before the environment's module is imported.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from ragen.errors import in_short
from ragen.parallel import linux
from ragen.parallel.episode.pickled import PickledSpecs
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import action_lookup, map_actions
from ragen.parallel.episode.values import options_taken
from ragen.parallel.kinds.process.supervisor import WORKER_MARK
from ragen.resources import held_leases, temporary_folder
from ragen.tools.json_codec import encode
from ragen.tools.recording import OPTIONS, Turns


class Probe:
    """Looks at one environment and at the process; a sham environment itself."""

    uses_global_rng = False

    def __init__(self, pickled: PickledSpecs) -> None:
        """Have this process print nowhere, and remember what it is like before the environment's class is imported."""
        self._pickled = pickled
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for standard in (1, 2):
            os.dup2(nowhere, standard)
        os.close(nowhere)
        self._mark = os.environ.get(WORKER_MARK)
        self._before = _process_state()

    def changes(self) -> list[str]:
        """What of this process the environment has changed."""
        now = _process_state()
        return [what for what, was in self._before.items() if now[what] != was]

    def build(self) -> None:
        """Build an environment."""
        self._env = self._spec.game.build(self._spec)

    def close_it(self) -> None:
        """Close the environment that was built."""
        if hasattr(self._env, "close"):
            self._env.close()

    def action_names(self, seed: int) -> list[str]:
        """The names in the environment's action lookup after a reset; none if it takes texts."""
        self.build()
        self._reset(seed)
        names = [str(name) for name in (action_lookup(self._env) or {}).values()]
        self.close_it()
        return names

    def draws(self, seed: int, turns: Turns) -> dict[str, list[str]]:
        """Which global generators are used or seeded in an episode, by the call that does so."""
        found: dict[str, list[str]] = {}

        def watched(name: str, call: Callable[[], Any]) -> Any:
            before = _generator_states()
            value = call()
            changed = [kind for kind, state in _generator_states().items() if state != before.get(kind, state)]
            if changed:
                found[name] = sorted({*found.get(name, ()), *changed})
            return value

        self._live(seed, turns, watched)
        return found

    def unshown(self, seed: int, turns: Turns) -> dict[str, str]:
        """What ``reset`` and ``step`` returned and ``render`` did not give, by the call, shortened; the first of each.

        What returns nothing hides nothing.
        """
        found: dict[str, str] = {}

        def compared(name: str, call: Callable[[], Any]) -> Any:
            value = call()
            observation = value[0] if name == "step" else value if name == "reset" else None
            if observation is not None and encode(observation) != encode(self._env.render()):
                found.setdefault(name, in_short(observation, 60))
            return value

        self._live(seed, turns, compared)
        return found

    def _live(self, seed: int, turns: Turns, do: Callable[[str, Callable[[], Any]], Any]) -> None:
        """Have an environment live through an episode, ``do`` making each of its calls, which are named."""
        do("__init__", self.build)
        do("reset", partial(self._reset, seed))
        do("render", self._env.render)
        for actions in turns:
            done = False
            for action in map_actions(self._env, actions):
                done = done or do("step", partial(self._env.step, action))[2]
            do("render", self._env.render)
            if done:
                break
        do("close", self.close_it)

    def belongings(self) -> dict[str, int]:
        """How much there is of what an environment of this process may leave behind."""
        gc.collect()
        files, folders = entries_below(temporary_folder())
        found = {"threads": threading.active_count()}
        if sys.platform == "linux":
            children = linux.descendants(os.getpid())
            if self._mark is not None:  # some are no descendants any more
                children |= linux.processes_with(f"{WORKER_MARK}={self._mark}")
            found = {
                "threads": len(os.listdir("/proc/self/task")),
                "child processes": len(children),
                "open files": len(os.listdir("/proc/self/fd")),
            }
        return found | {
            "temporary files": files,
            "temporary folders": folders,
            "unreleased leases on resources": held_leases(),
        }

    def working_directory(self) -> dict[str, int]:
        """The sizes of what is in the working directory that the process began in, but for compiled modules."""
        found = {}
        with os.scandir(self._before["the working directory"]) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = 0 if entry.is_dir() else entry.stat(follow_symlinks=False).st_size
        found.pop("__pycache__", None)
        return found

    def take_descriptors(self, count: int) -> None:
        """Open some files for good, so that those which are opened later have other numbers."""
        for _ in range(count):
            os.open(os.devnull, os.O_RDONLY)

    def resident_bytes(self) -> int:
        """Memory of this process that is in use; 0 where the system does not count it."""
        try:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    @cached_property
    def _spec(self) -> EnvSpec:
        return self._pickled.open()[0]

    def _reset(self, seed: int) -> Any:
        taken = options_taken(type(self._env).reset)
        return self._env.reset(seed=seed, **{key: OPTIONS[key] for key in OPTIONS if taken is None or key in taken})


def _described(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:  # closed
        return None
    return found.st_dev, found.st_ino


def entries_below(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """How many files and folders there are in a folder and in those below it."""
    files = folders = 0
    for _, names, others in os.walk(folder):
        files, folders = files + len(others), folders + len(names)
    return files, folders


def _generator_states() -> dict[str, Any]:
    """The global generators' states; NumPy's only if it is imported, as it is after an episode that uses it."""
    states: dict[str, Any] = {"random": random.getstate()}
    if "numpy.random" in sys.modules:
        _, keys, *others = sys.modules["numpy.random"].get_state()
        states["numpy.random"] = (keys.tobytes(), *others)
    return states


def _process_state() -> dict[str, Any]:
    """What an environment should leave as it is, since others live in the same process."""
    return {
        "the working directory": os.getcwd(),
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "os.environ": dict(os.environ),
        "sys.stdout or sys.stderr": [sys.stdout, sys.stderr],
        "what descriptors 0 to 2 are": [_described(number) for number in range(3)],
        "the recursion limit": sys.getrecursionlimit(),
        "signal handlers": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
    }
