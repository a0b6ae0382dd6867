"""``envs[i]["env"]``: a handle to a manager's environment, wherever it lives."""

from __future__ import annotations

from functools import partial
from typing import Any

from envlanes.engine import Engine
from envlanes.errors import EnvError, EnvLanesError
from envlanes.ragen.inputs import EnvStatus
from envlanes.ragen.settings import EnvEntry


class EnvHandle:
    """A handle to a manager's environment, with the methods and attributes of the environment itself.

    Methods are called, and attributes set, in the environment's process, each within ``step_timeout``; both are
    journaled, so that a rebuilt environment includes their effects. Values returned from a worker are copies. Use it
    only between turns.
    """

    __slots__ = ("_engine", "_env_id")

    def __init__(self, engine: Engine, env_id: int) -> None:
        """Create a handle to this environment."""
        object.__setattr__(self, "_engine", engine)  # past the method below, which sets attributes of the environment
        object.__setattr__(self, "_env_id", env_id)

    def __getattr__(self, name: str) -> Any:
        """Read an attribute, or return a method that runs in the environment's process."""
        # Protocols such as pickle and copy ask for these on any object: a request to a worker would answer for the
        # handle.
        if name.startswith("__"):
            raise AttributeError(name)
        env_class = self._engine.spec(self._env_id).env_class
        if callable(getattr(env_class, name, None)):
            return partial(self._call, name)
        try:
            return self._value(self._engine.read([self._env_id], name))
        except EnvError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(str(error)) from error  # for hasattr, and getattr with a default
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the environment itself."""
        self._value(self._engine.set_attr([self._env_id], name, value))

    def _call(self, name: str, /, *arguments: Any, **keywords: Any) -> Any:
        return self._value(self._engine.call([self._env_id], name, *arguments, **keywords))

    def _value(self, answers: dict[int, Any]) -> Any:
        answer = answers[self._env_id]
        if isinstance(answer, EnvLanesError):
            raise answer
        return answer

    def __repr__(self) -> str:
        return f"<{self._engine.spec(self._env_id).describe()}>"


def public_entry(entry: EnvEntry, engine: Engine) -> dict[str, Any]:
    """The entry of an environment in ``EnvStateManager.envs``."""
    spec = entry.spec
    return {
        "tag": spec.tag,
        "group_id": spec.group_id,
        "env_id": spec.env_id,
        "env": EnvHandle(engine, spec.env_id),
        "config": spec.config,
        "status": EnvStatus(),
        "max_actions_per_traj": entry.max_actions_per_traj,
    }
