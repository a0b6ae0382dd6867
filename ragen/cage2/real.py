"""The user's own CAGE Challenge 2: finds it, imports it without side effects, and plays it with isolated generators.

It is not on any package index: a checkout of ``cage-challenge/cage-challenge-2`` is found by ``cage2_path=``, by the
environment variable ``RAGEN_CAGE2_PATH``, or because its package ``CybORG`` can be imported.

It imports ``gym``, ``paramiko`` and ``prettytable``, but uses almost nothing of them. If one of them is not installed,
a stub takes its place *while CybORG is imported* and is removed afterwards, so that an ``import gym`` elsewhere in the
process is unaffected. The same holds for the folder on ``sys.path``.

It draws from the global ``random``. Each game has its own state of it, which is installed for the length of a call and
seeded with each episode's seed, so that an episode depends only on its seed and Blue's actions. NumPy's global
generator is isolated likewise if the checkout's sources mention it, or if the user supplies an agent.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ragen.cage2.layout import ACCESS_LEVELS, HOSTS, INDEX, N_ACTIONS, N_BITS
from ragen.errors import ConfigError, MissingExtraError
from ragen.parallel import EnvRng, PythonRng, outer_state_kept

ENV_VAR = "RAGEN_CAGE2_PATH"
SCENARIO = Path("Shared", "Scenarios", "Scenario2.yaml")
CLASSES = {"b_line": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}

_importing = threading.Lock()


class RedMove(NamedTuple):
    """An action of Red: the name of its class, and the index of its target host, -1 for none."""

    kind: str
    target: int = -1


# Finding it


def find(cage2_path: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of the package ``CybORG`` of CAGE Challenge 2.

    Args:
        cage2_path: A checkout of it, its folder ``CybORG``, or the package itself; by default, the environment variable
            ``RAGEN_CAGE2_PATH``, or else an importable package.

    Returns:
        The folder; None if nothing was named and nothing was found.

    Raises:
        ConfigError: The given path is not a CAGE Challenge 2.
    """
    named, path = "cage2_path", cage2_path
    if path is None:
        named, path = ENV_VAR, os.environ.get(ENV_VAR) or None
    if path is not None:
        root = Path(path).expanduser()
        for package in (root / "CybORG" / "CybORG", root / "CybORG", root):
            if _is_cage2(package):
                return package.resolve()
        raise ConfigError(
            f"{named} = {os.fspath(path)!r}: expected a checkout of CAGE Challenge 2, with CybORG/CybORG/{SCENARIO}."
        )
    return next((each.resolve() for each in _importable() if _is_cage2(each)), None)


def _importable() -> list[Path]:
    """The folders where an import would find ``CybORG``, even if this process has loaded it from elsewhere."""
    for finder in sys.meta_path:
        if (spec := finder.find_spec("CybORG", None)) is not None:
            return [Path(each) for each in (spec.submodule_search_locations or ())]
    return []


def _is_cage2(package: Path) -> bool:
    wrapper = package / "Agents" / "Wrappers" / "ChallengeWrapper.py"
    return package.name == "CybORG" and (package / SCENARIO).is_file() and wrapper.is_file()


# Importing it


class Cage2Modules(NamedTuple):
    """The needed parts of the package.

    Attributes:
        agents: The module of its agents.
        cyborg, wrapper: Its classes ``CybORG`` and ``ChallengeWrapper``.
        names_numpy_random: Whether its sources may draw from NumPy's global generator.
    """

    agents: ModuleType
    cyborg: Any
    wrapper: Any
    names_numpy_random: bool


def load(package: Path) -> Cage2Modules:
    """Import it.

    Args:
        package: The folder that :func:`find` returned.

    Raises:
        ConfigError: This process has already loaded another CybORG.
        MissingExtraError: A package that it needs, and that has no stub here, is not installed.
    """
    with _importing:
        loaded = sys.modules.get("CybORG")
        if loaded is not None and (there := _folder(loaded)) != package:
            raise ConfigError(f"CAGE 2 is asked for from {package}, and this process has loaded CybORG from {there}.")
        with _on_path(package.parent), _stand_ins():
            try:
                agents = importlib.import_module("CybORG.Agents")
                wrappers = importlib.import_module("CybORG.Agents.Wrappers")
                cyborg = importlib.import_module("CybORG")
            except ModuleNotFoundError as error:
                raise MissingExtraError(
                    f"CAGE 2 in {package} needs the package {error.name!r}, which is not installed."
                ) from error
        return Cage2Modules(agents, cyborg.CybORG, wrappers.ChallengeWrapper, _names_numpy_random())


@cache
def _names_numpy_random() -> bool:
    """Whether one of its imported modules mentions NumPy's generator; the original challenge's do not."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "CybORG"]
    sources = [Path(module.__file__) for module in modules if module.__file__]
    return any(
        word in source.read_bytes()
        for source in sources
        if source.suffix == ".py"
        for word in (b"np.random", b"numpy.random", b"from numpy import random")
    )


def _folder(module: ModuleType) -> Path | None:
    return Path(module.__file__).resolve().parent if module.__file__ else None


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _stand_ins() -> Iterator[None]:
    made = {name: make() for name, make in _MAKERS.items() if _is_lacking(name)}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _is_lacking(name: str) -> bool:
    return name not in sys.modules and importlib.util.find_spec(name) is None


def _gym() -> ModuleType:
    import gymnasium

    module = ModuleType("gym", "Stands in for gym.")
    module.Env, module.spaces = gymnasium.Env, gymnasium.spaces  # type: ignore[attr-defined]
    return module


def _paramiko() -> ModuleType:
    return ModuleType("paramiko", "Stands in for paramiko.")


class _Table:
    """A stub for prettytable's: rows in order of insertion."""

    def __init__(self, field_names: Any = ()) -> None:
        self.field_names = list(field_names)
        self._rows: list[list[Any]] = []

    def add_row(self, row: Any) -> None:
        self._rows.append(list(row))


def _prettytable() -> ModuleType:
    module = ModuleType("prettytable", "Stands in for prettytable.")
    module.PrettyTable = _Table  # type: ignore[attr-defined]
    return module


_MAKERS = {"gym": _gym, "paramiko": _paramiko, "prettytable": _prettytable}


# Playing it


class Cage2Game:
    """One game of the real CAGE Challenge 2, with the embedded simulator's interface.

    Attributes:
        env: Its ``ChallengeWrapper``.
        last_red: Red's last action, and whether success was reported to it.
    """

    def __init__(self, package: Path, red_agent: Any, scenario_path: str | None = None) -> None:
        """Build it.

        Args:
            package: The folder that :func:`find` returned.
            red_agent: A key of :data:`CLASSES`, or a class pickled by cloudpickle.
            scenario_path: A scenario; its own second one by default.

        Raises:
            ConfigError: The scenario has different hosts or actions.
        """
        modules = load(package)
        is_known = isinstance(red_agent, str) and not modules.names_numpy_random
        self._rng: EnvRng | PythonRng = PythonRng(0) if is_known else EnvRng(0)
        scenario = str(package / SCENARIO) if scenario_path is None else scenario_path
        with self._apart():
            red = _red_class(modules, package, red_agent)
            self._cyborg = modules.cyborg(scenario, "sim", agents={"Red": red})
            self.env = modules.wrapper(agent_name="Blue", env=self._cyborg)
        found = self.env.observation_space.shape[0], int(self.env.action_space.n)
        if found != (N_BITS, N_ACTIONS):
            raise ConfigError(
                f"scenario_path = {scenario!r} has {found[0]} bits and {found[1]} actions: expected "
                f"{N_BITS} and {N_ACTIONS}, those of the second scenario."
            )
        self._controller = self._cyborg.environment_controller
        self.last_red = RedMove("Sleep"), False

    def reset(self, seed: int) -> Any:
        """Begin an episode, determined by the seed and Blue's actions; returns 52 bits."""
        self._rng.seed(seed)
        with self._apart():
            found = self.env.reset()
        self.last_red = RedMove("Sleep"), False
        return found

    def step(self, action: int) -> tuple[Any, float]:
        """Play a step; returns 52 bits and Blue's reward."""
        with self._apart():
            bits, reward, _, _ = self.env.step(action=action)
        self.last_red = self._red()
        return bits, float(reward)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Install its own generator states, and restore the process's afterwards."""
        with outer_state_kept() if isinstance(self._rng, EnvRng) else nullcontext(), self._rng.in_place():
            yield

    def _red(self) -> tuple[RedMove, bool]:
        move = self._controller.action["Red"]
        hostname = getattr(move, "hostname", None)
        if hostname is None:
            hostname = self._controller.state.ip_addresses.get(getattr(move, "ip_address", None))
        is_done = self._controller.observation["Red"].success == True  # noqa: E712  (its enum knows booleans)
        return RedMove(type(move).__name__, INDEX.get(hostname, -1)), bool(is_done)

    def held(self) -> list[int]:
        """Hosts on which Red has a session."""
        sessions = self._controller.state.sessions["Red"].values()
        return sorted({INDEX[session.host] for session in sessions})

    def access_levels(self) -> dict[str, str]:
        """Red's access to each host: one of :data:`ragen.cage2.layout.ACCESS_LEVELS` by host name."""
        found = dict.fromkeys(HOSTS, 0)
        for session in self._controller.state.sessions["Red"].values():
            level = 2 if session.username in ("root", "SYSTEM") else 1
            found[session.host] = max(found[session.host], level)
        return {name: ACCESS_LEVELS[level] for name, level in found.items()}


def _red_class(modules: Cage2Modules, package: Path, red_agent: Any) -> Any:
    if isinstance(red_agent, str):
        return getattr(modules.agents, CLASSES[red_agent])
    import cloudpickle

    with _on_path(package.parent):
        return cloudpickle.loads(red_agent)
