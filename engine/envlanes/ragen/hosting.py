"""Environments that look like objects of this process and live in workers, for managers that are kept as they are.

At the end of ``ragen/env/__init__.py``::

    from envlanes.ragen import hosted
    REGISTERED_ENVS = hosted(REGISTERED_ENVS, max_workers=8)

Each call of ``reset``, ``step`` or any other method is a request of its own, journaled, so that the environments of a
killed worker are rebuilt. Calls of several threads play at the same time; calls of one thread do not.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from envlanes.engine import Engine
from envlanes.environments import EnvFailed
from envlanes.episode import program
from envlanes.episode.spec import EnvSpec
from envlanes.errors import EnvLanesError
from envlanes.ragen.games import STEPS
from envlanes.ragen.handle import EnvHandle
from envlanes.ragen.own_process import why_own_process
from envlanes.settings import Settings


class HostedEnv(EnvHandle):
    """One environment; attributes are read and set, and methods called, where it lives."""

    __slots__ = ()

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        """Begin an episode; returns what the environment renders."""
        return self._value(self._engine.reset({self._env_id: seed}, {"mode": mode}))

    def step(self, action: Any) -> Any:
        """The result of the environment's own ``step``."""
        return self._value(self._engine.play({self._env_id: (action,)})).returned

    def close(self) -> None:
        """Close it, and forget it."""
        self._engine.remove([self._env_id])

    def _value(self, answers: dict[int, Any]) -> Any:
        answer = answers[self._env_id]
        if isinstance(answer, EnvFailed):
            answer = answer.error
        if isinstance(answer, EnvLanesError) and isinstance(answer.__cause__, Exception):
            raise answer.__cause__  # the environment's own, as if it lived here
        return super()._value({self._env_id: answer})


def hosted(classes: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Functions that build environments in workers, by type; types that depend on their process stay classes.

    Args:
        classes: The classes.
        settings: Fields of :class:`envlanes.settings.Settings`, such as ``max_workers``.

    Raises:
        ConfigError: A setting is unknown, or has an invalid value.
    """
    if program.in_worker:  # it has imported the package that calls this
        return dict(classes)
    host = _Host(Settings.of(**{"use_lanes": True, "on_env_failure": "raise", **settings}))
    own = {name for name, env_class in classes.items() if why_own_process(env_class)}
    return {name: each if name in own else partial(host.build, name, each) for name, each in classes.items()}


class _Host:
    """Builds environments on one engine, which is made for the first and closed when the program ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine: Engine | None = None
        self._lock, self._numbers = threading.Lock(), itertools.count()

    def build(self, env_type: str, env_class: Any, config: Any = None) -> HostedEnv:
        with self._lock:
            if self._engine is None:  # a program that builds none starts no workers
                self._engine = Engine((), self._settings)
                atexit.register(self._engine.close)
            engine, number = self._engine, next(self._numbers)
        spec = EnvSpec(number, number, env_type, env_type, STEPS, env_class, config)
        engine.add(spec, worker=number % self._settings.workers)
        return HostedEnv(engine, number)
