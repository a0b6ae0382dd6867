"""The user's own CAGE Challenge 2: finds it, imports it without side effects, and plays it with isolated generators.

It is not on any package index: a checkout of ``cage-challenge/cage-challenge-2`` is found by ``cage2_path=``, by the
environment variable ``RAGEN_CAGE2_PATH``, or because its package ``CybORG`` can be imported.

It imports ``gym``, ``paramiko`` and ``prettytable``, but uses almost nothing of them. If one of them is not installed,
a stub takes its place *while CybORG is imported* and is removed afterwards, so that an ``import gym`` elsewhere in the
process is unaffected. The same holds for the folder on ``sys.path``.

It draws from the global ``random`` alone. Each game has its own state of it, which is installed for the length of a
call and seeded with each episode's seed, so that an episode depends only on its seed and Blue's actions.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from envlanes import EnvRng, outer_state_kept
from ragen.cage2.layout import HOSTS, INDEX, N_ACTIONS, N_BITS, PRIVILEGED
from ragen.errors import ConfigError

ENV_VAR = "RAGEN_CAGE2_PATH"
SCENARIO = Path("Shared", "Scenarios", "Scenario2.yaml")
CLASSES = {"b_line": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}

_MODULES = (".Agents", ".Agents.Wrappers", "")


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
    spec = importlib.util.find_spec("CybORG")
    found = spec.submodule_search_locations if spec else None
    return next((Path(each).resolve() for each in found or () if _is_cage2(Path(each))), None)


def _is_cage2(package: Path) -> bool:
    wrapper = package / "Agents" / "Wrappers" / "ChallengeWrapper.py"
    return package.name == "CybORG" and (package / SCENARIO).is_file() and wrapper.is_file()


# Importing it


def load(package: Path) -> tuple[Any, Any, Any]:
    """Import it: its class ``CybORG``, ``ChallengeWrapper``, and the module of its agents.

    Args:
        package: The folder that :func:`find` returned.

    Raises:
        ConfigError: This process has already loaded another CybORG.
        ModuleNotFoundError: A package that it needs, and that has no stub here, is not installed.
    """
    with _importable(package.parent):
        agents, wrappers, whole = (importlib.import_module(f"CybORG{name}") for name in _MODULES)
    if (there := Path(str(whole.__file__)).resolve().parent) != package:
        raise ConfigError(f"CAGE 2 is asked for from {package}, and this process has loaded CybORG from {there}.")
    return whole.CybORG, wrappers.ChallengeWrapper, agents


class _Table:
    """A stub for prettytable's: rows in order of insertion."""

    def __init__(self, field_names: Any) -> None:
        self._rows: list[list[Any]] = []

    def add_row(self, row: Any) -> None:
        self._rows.append(list(row))


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Put the folder on the path, and stubs in the place of packages that are not installed."""
    needed = ("gym", "paramiko", "prettytable")
    made: dict[str, Any] = {name: ModuleType(name) for name in needed if importlib.util.find_spec(name) is None}
    if "gym" in made:
        made["gym"].Env, made["gym"].spaces = gymnasium.Env, gymnasium.spaces
    if "prettytable" in made:
        made["prettytable"].PrettyTable = _Table
    sys.modules.update(made)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in made:
            del sys.modules[name]


# Playing it


class Cage2Game:
    """One game of the real CAGE Challenge 2, with the embedded simulator's interface.

    Attributes:
        env: Its ``ChallengeWrapper``.
    """

    def __init__(self, package: Path, red_agent: str, scenario_path: Any = None) -> None:
        """Build it.

        Args:
            package: The folder that :func:`find` returned.
            red_agent: A key of :data:`CLASSES`.
            scenario_path: A scenario; its own second one by default.

        Raises:
            ConfigError: The scenario has different hosts or actions.
        """
        cyborg, wrapper, agents = load(package)
        self._rng = EnvRng(0)
        scenario = scenario_path or str(package / SCENARIO)
        with outer_state_kept(), self._rng.in_place():
            made = cyborg(scenario, "sim", agents={"Red": getattr(agents, CLASSES[red_agent])})
            self.env = wrapper(agent_name="Blue", env=made)
        found = self.env.observation_space.shape[0], int(self.env.action_space.n)
        if found != (N_BITS, N_ACTIONS):
            raise ConfigError(
                f"scenario_path = {scenario!r} has {found[0]} bits and {found[1]} actions: expected "
                f"{N_BITS} and {N_ACTIONS}, those of the second scenario."
            )
        self._controller = made.environment_controller

    def reset(self, seed: int) -> Any:
        """Begin an episode, determined by the seed and Blue's actions; returns 52 bits."""
        self._rng.seed(seed)
        with outer_state_kept(), self._rng.in_place():
            return self.env.reset()

    def step(self, action: int) -> tuple[Any, float]:
        """Play a step; returns 52 bits and Blue's reward."""
        with outer_state_kept(), self._rng.in_place():
            bits, reward, _, _ = self.env.step(action=action)
        return bits, float(reward)

    def levels(self) -> list[int]:
        """Red's access to each host, as indices into :data:`ragen.cage2.layout.ACCESS_LEVELS`."""
        found = [0] * len(HOSTS)
        for session in self._controller.state.sessions["Red"].values():
            level = PRIVILEGED if session.username in ("root", "SYSTEM") else 1
            found[INDEX[session.host]] = max(found[INDEX[session.host]], level)
        return found
