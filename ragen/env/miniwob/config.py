"""The configuration of the MiniWoB++ environment: tasks, number of actions, browser."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.checks import check, or_null, some_of
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
        check(_TYPE, self, tasks=or_null(some_of((*PLAYABLE, *OUT_OF_REACH))))

    def names(self) -> list[str]:
        """The names of the tasks to draw from."""
        return list(PLAYABLE if self.tasks is None else self.tasks)
