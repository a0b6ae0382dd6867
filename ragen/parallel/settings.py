"""How an engine behaves: its settings, with their defaults and units."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Literal

from ragen.errors import ConfigError
from ragen.parallel.nodes.options import RayOptions
from ragen.parallel.this_process import usable_cpus

Mode = bool | Literal["auto"]
OnEnvFailure = Literal["fallback", "truncate", "raise"]

BACKENDS = ("process", "executor", "ray")
START_METHODS = ("forkserver", "spawn")
ON_ENV_FAILURE = ("fallback", "truncate", "raise")
MODES: tuple[Mode, ...] = (True, False, "auto")


@dataclass(frozen=True)
class Settings:
    """How an engine behaves; times in seconds.

    Attributes:
        use_lanes: ``True`` hosts all environments in lanes, ``False`` none, ``"auto"`` those for which it was measured
            to pay.
        max_workers: Most lanes, and most quarantine lanes beside them; None for ``min(8, usable processors)``, and on
            a cluster for as many lanes as its nodes have room for.
        backend: Kind of workers: ``"process"`` (own processes under a supervisor), ``"executor"`` (the standard
            library's ``ProcessPoolExecutor``, taken by itself where the first cannot be had) or ``"ray"`` (processes
            on the nodes of a Ray cluster); or ``"package.module:Class"``, a
            :class:`~ragen.parallel.lanes.handle.LaneKind` of one's own, which is built without arguments.
        sequential_env_types: Types that always stay in the main process.
        step_timeout: For one turn of one environment, and for one call of it.
        reset_timeout: For one reset, and for each step of a replay.
        startup_timeout: For one worker to start, and for the classes of a tag to be loaded there.
        on_env_failure: What follows when an environment fails: ``"fallback"`` (once more on a rebuilt one, and then it
            has failed), ``"truncate"`` and ``"raise"`` (it has failed at once).
        max_restarts: How often a lane's idle worker may die in an episode before its environments take turns in
            quarantine; and how often an environment's worker may be killed, perhaps from outside, at its turn.
        start_method: ``"forkserver"`` (workers are forks of a fresh process) or ``"spawn"`` (fresh interpreters).
        ray: Which nodes of a cluster are used and what lanes claim there; options or a mapping of them.
        max_turns: Turns that an episode has at most, where that is known: ``"auto"`` moves nothing for the last ones.
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
    ray: RayOptions = RayOptions()  # noqa: RUF009  # frozen
    max_turns: int | None = None

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: One cannot work; the message names it and what was expected.
        """
        _expect("use_lanes", self.use_lanes, MODES)
        if not names_own_kind(self.backend):
            _expect("backend", self.backend, BACKENDS)
        _expect("start_method", self.start_method, START_METHODS)
        _expect("on_env_failure", self.on_env_failure, ON_ENV_FAILURE)
        for name in ("step_timeout", "reset_timeout", "startup_timeout"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
                raise ConfigError(f"{name} = {seconds!r}: expected a finite number of seconds greater than 0.")
        for name in ("max_workers", "max_turns"):
            most = getattr(self, name)
            if most is not None and not _is_integer(most, 1):
                raise ConfigError(f"{name} = {most!r}: expected an integer of at least 1, or None.")
        if not _is_integer(self.max_restarts, 0):
            raise ConfigError(f"max_restarts = {self.max_restarts!r}: expected an integer of at least 0.")
        object.__setattr__(self, "ray", RayOptions.of(self.ray))
        if isinstance(self.sequential_env_types, str):
            raise ConfigError(f"sequential_env_types = {self.sequential_env_types!r}: expected a list of names.")

    @classmethod
    def of(cls, **values: Any) -> Settings:
        """Settings from keyword arguments; a misspelt one is told with what was meant.

        Raises:
            ConfigError: There is no such setting, or a value cannot work.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise ConfigError(f"there is no setting {name!r}; {f'{near[0]!r} was meant?' if near else known}")
        return cls(**values)

    @property
    def workers(self) -> int:
        """Most lanes: ``max_workers``, or its default."""
        return self.max_workers or default_workers()


def default_workers() -> int:
    """``max_workers: null``: as many as processors, but no more than 8."""
    return min(8, usable_cpus())


def names_own_kind(backend: Any) -> bool:
    """Whether a backend is the path of a class, and not one of :data:`BACKENDS`."""
    return isinstance(backend, str) and ":" in backend


def _expect(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        raise ConfigError(f"{name} = {value!r}: expected one of {', '.join(map(repr, choices))}.")


def _is_integer(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum
