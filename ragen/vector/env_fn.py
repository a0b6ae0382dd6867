"""What builds one sub-environment, with what the engine has to know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class EnvFn:
    """A function that builds an environment; travels to workers, closures and lambdas too.

    Attributes:
        preload: Modules that workers need to build and to play it, imported once for all of them.
        uses_global_rng: Whether the environment may draw from the global generators, which are then kept apart for it.
        replayable: Whether it can be rebuilt from its seed and actions.
    """

    preload = ("gymnasium", "ragen.games.gym_row", __name__)

    def __init__(self, build: Callable[[], Any], uses_global_rng: bool = False, replayable: bool = True) -> None:
        """Build environments with this function."""
        self._build = build
        self.uses_global_rng, self.replayable = uses_global_rng, replayable
        self.__module__ = getattr(build, "__module__", None) or "builtins"
        self.__qualname__ = getattr(build, "__qualname__", type(build).__qualname__)

    def __call__(self) -> Any:
        """Build one."""
        return self._build()
