"""The configuration of the MiniWoB++ environment: tasks, number of actions, browser."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.checks import is_integer, require
from ragen.env.miniwob.tasks import OUT_OF_REACH, PLAYABLE

_TYPE = "miniwob"


@dataclass
class MiniWobEnvConfig:
    """Configuration of :class:`~ragen.env.miniwob.env.MiniWobEnv`.

    Attributes:
        tasks: Names of tasks, such as ``click-button``, from which the seed draws one; None for all of
            :data:`~ragen.env.miniwob.tasks.PLAYABLE`.
        max_steps: Maximum number of actions per episode.
        browser_path: Path of a Chromium or Chrome; None for the system's.
        render_mode: ``"text"``.
    """

    tasks: list[str] | None = None
    max_steps: int = 10
    browser_path: str | None = None
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid, or a task does not exist.
        """
        listed = self.tasks is None or (isinstance(self.tasks, list | tuple) and bool(self.tasks))
        known = listed and all(
            isinstance(name, str) and name in (*PLAYABLE, *OUT_OF_REACH) for name in self.tasks or ()
        )
        require(known, _TYPE, "tasks", self.tasks, "null or a list of tasks of ragen/env/miniwob/tasks.py")
        require(is_integer(self.max_steps, 1), _TYPE, "max_steps", self.max_steps, "an integer of at least 1")
        path_ok = self.browser_path is None or (isinstance(self.browser_path, str) and bool(self.browser_path))
        require(path_ok, _TYPE, "browser_path", self.browser_path, "null or the path of a Chromium")
        require(self.render_mode == "text", _TYPE, "render_mode", self.render_mode, "'text'")

    def names(self) -> list[str]:
        """The names of the tasks to draw from."""
        return list(PLAYABLE if self.tasks is None else self.tasks)
