"""The settings of an engine with their defaults and units."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True)
class Settings:
    """The settings of an engine; times in seconds.

    Attributes:
        use_lanes: ``True`` hosts all environments in workers, ``False`` none, ``"auto"`` those for which measurements
            show that it pays off.
        max_workers: Maximum number of workers. None for
            ``min(8, usable processors)``; with ``"auto"``, for as many as waiting environments can use; on a cluster,
            for as many as it has room for.
        backend: Kind of workers: ``"process"`` (processes under a supervisor), ``"executor"`` (the standard library's
            ``ProcessPoolExecutor``, used automatically where ``"process"`` is unavailable) or ``"ray"`` (processes on
            the nodes of a Ray cluster).
        sequential_env_types: Types that always stay in the main process.
        step_timeout: For one turn of one environment, and for one call of it.
        reset_timeout: For one reset, and for each step of a replay.
        startup_timeout: For one worker to start, and for loading the classes of a tag there.
        on_env_failure: Response to an environment's failure: ``"fallback"`` (retry once on a rebuilt environment,
            then it has failed), ``"truncate"`` and ``"raise"`` (it has failed at once).
        max_restarts: Number of deaths of an idle worker per episode before its environments are played one by one
            (per call, of kills that may come from outside); also the number of times that an
            environment's worker may be killed, perhaps externally, during its turn.
        start_method: ``"forkserver"`` (workers are forks of a clean process) or ``"spawn"`` (fresh interpreters).
        ray: The nodes of a cluster to use and the resources to claim there: :class:`.RayOptions`, or a mapping of them.
        preloaded: Prefix of names of modules that are imported once for all workers, such as ``"my_envs."``, where
            such a module defines an environment's class.
    """

    use_lanes: Mode = "auto"
    max_workers: int | None = None
    backend: str = "process"
    sequential_env_types: tuple[str, ...] = ()
    # A turn of a browser or a build takes seconds, and a reset of one may download or compile: each of these is several
    # times that, so that only what hangs is ended.
    step_timeout: float = 60.0
    reset_timeout: float = 120.0
    startup_timeout: float = 60.0
    on_env_failure: OnEnvFailure = "fallback"
    max_restarts: int = 3  # one or two in an episode may be an accident, such as memory that was short
    start_method: str = "forkserver"
    ray: Any = None
    preloaded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid; the message names it and what was expected.
        """
        check(self, _FIELDS)

    @classmethod
    def of(cls, **values: Any) -> Settings:
        """Settings from keyword arguments; the error for a misspelt one names what was meant.

        Raises:
            ConfigError: There is no such setting, or a value is invalid.
        """
        refuse_unknown(cls, values)
        return cls(**values)

    @property
    def workers(self) -> int:
        """Most workers: ``max_workers``, or its default."""
        return self.max_workers or default_workers()


def default_workers() -> int:
    """``max_workers: null``: as many as processors, but no more than 8."""
    # Beyond eight, main's own part of a turn (.01 ms for each environment) is most of it for cheap environments, and
    # those that are worth more say so with `max_workers`.
    return min(8, usable_cpus())


def check(values: Any, fields: Mapping[str, Expected], prefix: str = "") -> None:
    """Raise an error for the first field that does not fit."""
    for name, (fits, expected) in fields.items():
        if not fits(value := getattr(values, name)):
            raise ConfigError(f"{prefix}{name} = {value!r}: expected {expected}.")


def refuse_unknown(cls: Any, values: Mapping[str, Any], prefix: str = "") -> None:
    """Raise an error for the first name that is no field of a class; it says what was meant."""
    known = [each.name for each in dataclasses.fields(cls)]
    for name in values:
        if name not in known:
            meant = did_you_mean(str(name), known, lambda near: prefix + near) or f" There are {', '.join(known)}."
            raise ConfigError(f"{prefix}{name} = {values[name]!r}: there is no such key.{meant}")


Expected = tuple[Callable[[Any], bool], str]  # whether a value fits, and what was expected


def is_amount(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _integer(minimum: int) -> Expected:
    return lambda value: type(value) is int and value >= minimum, f"an integer of at least {minimum}"


def _one_of(allowed: Sequence[Any]) -> Expected:
    return lambda value: repr(value) in map(repr, allowed), f"one of {allowed}"  # by its text: 1 equals True


def or_none(fits: Callable[[Any], bool], expected: str) -> Expected:
    """The same, or None."""
    return lambda value: value is None or fits(value), f"{expected}, or null"


_SECONDS = (lambda value: is_amount(value) and value > 0, "a finite number of seconds above 0")
_FIELDS: dict[str, Expected] = {
    "use_lanes": _one_of(MODES),
    "backend": _one_of(BACKENDS),
    "start_method": _one_of(START_METHODS),
    "on_env_failure": _one_of(ON_ENV_FAILURE),
    **dict.fromkeys(("step_timeout", "reset_timeout", "startup_timeout"), _SECONDS),
    "max_workers": or_none(*_integer(1)),
    "max_restarts": _integer(0),
    "sequential_env_types": (lambda value: not isinstance(value, str), "a list of names"),
}
