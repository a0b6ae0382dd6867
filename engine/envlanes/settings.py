"""The settings of an engine with their defaults and units, including ``es_manager.ray``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envlanes.errors import ConfigError, did_you_mean
from envlanes.this_process import usable_cpus

Mode = bool | Literal["auto"]
OnEnvFailure = Literal["fallback", "truncate", "raise"]

BACKENDS = ("process", "executor", "ray")
START_METHODS = ("forkserver", "spawn")
ON_ENV_FAILURE = ("fallback", "truncate", "raise")
MODES: tuple[Mode, ...] = (True, False, "auto")

ALL, WORKERS = "all", "worker"
CURRENT = "current"
_CLIENT = "ray://"


@dataclass(frozen=True)
class RayOptions:
    """The part of a cluster to use.

    Attributes:
        address: Address of the cluster, as ``ray.init`` takes it; None for the one that this process is connected to,
            or that ``RAY_ADDRESS`` names, or else for a local one that lasts as long as its lanes.
        num_cpus: Processors that each worker claims on its node; 0 for none.
        resources: Custom resources that each worker claims on its node, by name.
        nodes: ``"all"`` of them, ``"worker"`` for all but the head, or the ones that are named: by id (or how it
            begins), address or host name.
        placement_group: Name of a placement group whose bundles the claims are made of, ``"current"`` for the one that
            this process is in; None for none.
        runtime_env: Ray's ``runtime_env`` for the nodes, as JSON, for example to ship code; "" for the job's alone.
    """

    address: str | None = None
    num_cpus: float = 1
    resources: tuple[tuple[str, float], ...] = ()
    nodes: str | tuple[str, ...] = ALL
    placement_group: str | None = None
    runtime_env: str = ""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid; the message names it and what was expected.
        """
        for name in ("address", "placement_group"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"ray.{name} = {value!r}: expected a text, or null.")
        if self.address is not None and self.address.startswith(_CLIENT):
            raise ConfigError(
                f"ray.address = {self.address!r}: workers cannot be started over Ray Client, as the driver is not in "
                "the cluster's network; run the program on a node of the cluster (`ray job submit` does), with address "
                "'auto'."
            )
        _expect_amount("ray.num_cpus", self.num_cpus)
        for name, amount in self.resources:
            _expect_amount(f"ray.resources.{name}", amount)
            if name in ("CPU", "memory", "object_store_memory"):
                raise ConfigError(
                    f"ray.resources.{name} = {amount!r}: that is not a custom resource; see ray.num_cpus."
                )
        if isinstance(self.nodes, str) and self.nodes not in (ALL, WORKERS):
            raise ConfigError(f"ray.nodes = {self.nodes!r}: expected 'all', 'worker', or a list of nodes.")
        if not self.nodes or not all(isinstance(name, str) and name for name in self.nodes):
            raise ConfigError(f"ray.nodes = {list(self.nodes)!r}: expected 'all', 'worker', or a list of nodes.")

    @classmethod
    def of(cls, values: Any, key: str = "ray") -> RayOptions:
        """Options from a mapping.

        Args:
            values: The mapping; None for the defaults.
            key: The mapping's key in the configuration, for messages.

        Raises:
            ConfigError: There is no such option, or a value is invalid.
        """
        if values is None:
            return cls()
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise ConfigError(f"{key} = {values!r}: expected a mapping such as {{num_cpus: 1, nodes: all}}.")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                meant = did_you_mean(str(name), known, lambda near: f"{key}.{near}") or _there_are(known)
                raise ConfigError(f"{key}.{name} = {values[name]!r}: there is no such key.{meant}")
        try:
            return cls(**{**values, **_hashable(values, key)})
        except ConfigError as error:
            text = str(error)
            raise ConfigError(key + text.removeprefix("ray") if text.startswith("ray.") else text) from None

    def environment(self) -> dict[str, Any]:
        """``runtime_env`` as Ray takes it."""
        return json.loads(self.runtime_env) if self.runtime_env else {}

    def local_paths(self) -> list[str]:
        """What ``runtime_env`` ships from this machine, which Ray does for a whole job alone."""
        given = self.environment()
        listed = given.get("py_modules") or []
        paths = [given.get("working_dir"), *(listed if isinstance(listed, list) else [listed])]
        return [str(path) for path in paths if path and "://" not in str(path)]

    def claims(self) -> dict[str, float]:
        """What one lane claims, by Ray's names."""
        return {name: amount for name, amount in (("CPU", self.num_cpus), *self.resources) if amount}


@dataclass(frozen=True)
class Settings:
    """The settings of an engine; times in seconds.

    Attributes:
        use_lanes: ``True`` hosts all environments in workers, ``False`` none, ``"auto"`` those for which measurements
            show that it pays off.
        max_workers: Maximum number of workers, and also of additional quarantine workers. None for ``min(8, usable
            processors)``; with ``"auto"``, for as many as waiting environments can use; on a cluster, for as many as it
            has room for.
        backend: Kind of workers: ``"process"`` (processes under a supervisor), ``"executor"`` (the standard library's
            ``ProcessPoolExecutor``, used automatically where ``"process"`` is unavailable) or ``"ray"`` (processes on
            the nodes of a Ray cluster).
        sequential_env_types: Types that always stay in the main process.
        step_timeout: For one turn of one environment, and for one call of it.
        reset_timeout: For one reset, and for each step of a replay.
        startup_timeout: For one worker to start, and for loading the classes of a tag there.
        on_env_failure: What happens when an environment fails: ``"fallback"`` (retry once on a rebuilt environment,
            then it has failed), ``"truncate"`` and ``"raise"`` (it has failed at once).
        max_restarts: How often an idle worker may die per episode before its environments take turns in quarantine
            (kills that may come from outside count until a turn was played);
            also how often an environment's worker may be killed, perhaps externally, during its turn.
        start_method: ``"forkserver"`` (workers are forks of a clean process) or ``"spawn"`` (fresh interpreters).
        ray: Which nodes of a cluster are used and what workers claim there; options or a mapping of them.
        why_sequential: Why types of ``sequential_env_types`` must stay there, by type; shown where placement is.
        preloaded: How the names of modules begin that are imported once for all workers, such as ``"my_envs."``, where
            such a module defines an environment's class or a base of it.
    """

    use_lanes: Mode = "auto"
    max_workers: int | None = None
    backend: str = "process"
    sequential_env_types: tuple[str, ...] = ()
    step_timeout: float = 60.0
    reset_timeout: float = 120.0
    startup_timeout: float = 60.0
    on_env_failure: OnEnvFailure = "fallback"
    max_restarts: int = 3
    start_method: str = "forkserver"
    ray: RayOptions = dataclasses.field(default_factory=RayOptions)
    why_sequential: Mapping[str, str] = dataclasses.field(default_factory=dict)
    preloaded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid; the message names it and what was expected.
        """
        _expect("use_lanes", self.use_lanes, MODES)
        _expect("backend", self.backend, BACKENDS)
        _expect("start_method", self.start_method, START_METHODS)
        _expect("on_env_failure", self.on_env_failure, ON_ENV_FAILURE)
        for name in ("step_timeout", "reset_timeout", "startup_timeout"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
                raise ConfigError(f"{name} = {seconds!r}: expected a finite number of seconds greater than 0.")
        if self.max_workers is not None and not _is_integer(self.max_workers, 1):
            raise ConfigError(f"max_workers = {self.max_workers!r}: expected an integer of at least 1, or None.")
        if not _is_integer(self.max_restarts, 0):
            raise ConfigError(f"max_restarts = {self.max_restarts!r}: expected an integer of at least 0.")
        object.__setattr__(self, "ray", RayOptions.of(self.ray))
        if isinstance(self.sequential_env_types, str):
            raise ConfigError(f"sequential_env_types = {self.sequential_env_types!r}: expected a list of names.")

    @classmethod
    def of(cls, **values: Any) -> Settings:
        """Settings from keyword arguments; the error for a misspelt one names what was meant.

        Raises:
            ConfigError: There is no such setting, or a value is invalid.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"unknown setting {name!r}.{did_you_mean(name, known) or _there_are(known)}")
        return cls(**values)

    @property
    def workers(self) -> int:
        """Most lanes: ``max_workers``, or its default."""
        return self.max_workers or default_workers()


def default_workers() -> int:
    """``max_workers: null``: as many as processors, but no more than 8."""
    return min(8, usable_cpus())


def _expect(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        raise ConfigError(f"{name} = {value!r}: expected one of {', '.join(map(repr, choices))}.")


def _is_integer(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _hashable(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    resources, nodes = values.get("resources") or {}, values.get("nodes", ALL)
    if not isinstance(resources, Mapping):
        raise ConfigError(f"{key}.resources = {resources!r}: expected a mapping of names to amounts.")
    if isinstance(nodes, list | tuple):
        nodes = tuple(nodes)
    elif not isinstance(nodes, str):
        raise ConfigError(f"{key}.nodes = {nodes!r}: expected 'all', 'worker', or a list of nodes.")
    amounts = tuple(sorted((str(name), amount) for name, amount in resources.items()))
    return {"resources": amounts, "nodes": nodes, "runtime_env": _as_json(values.get("runtime_env"), key)}


def _as_json(given: Any, key: str) -> str:
    if not given:
        return ""
    try:
        if not isinstance(given, Mapping):
            raise TypeError
        return json.dumps(given, sort_keys=True)
    except (TypeError, ValueError):
        expected = "expected a mapping of plain values, such as {working_dir: .}"
        raise ConfigError(f"{key}.runtime_env = {given!r}: {expected}, which ray.init takes.") from None


def _there_are(names: Iterable[str]) -> str:
    return f" There are {', '.join(names)}."


def _expect_amount(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} = {value!r}: expected a number of at least 0.")
