"""What the main process knows of an environment between two actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen.container.game import Shown
from ragen.parallel.environments import EnvFailed
from ragen.parallel.episode.values import copied

Answer = tuple[Any, float, bool, dict[str, Any]]


@dataclass(slots=True)
class EnvState:
    """What is known in the main process of one environment.

    Attributes:
        raw: What it last showed.
        info: What came with it.
        actions: What can be done now.
        names: The name of each key.
        done: Whether its episode is over.
        played: Actions of this episode.
    """

    raw: Any = ""
    info: dict[str, Any] = field(default_factory=dict)
    actions: list[Any] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    done: bool = False
    played: int = 0

    def see(self, shown: Shown) -> None:
        """Take in what the environment shows."""
        self.raw, self.info = shown.raw, shown.info
        if shown.actions is not None:
            self.actions = shown.actions
        if shown.names is not None:
            self.names = shown.names

    def fail(self, failed: EnvFailed) -> None:
        """The episode is over, as the environment has failed for good."""
        self.info, self.done = {"env_error": failed.text, "error": failed.text}, True

    def unasked(self, was_over: bool) -> Answer:
        """What is answered for an environment that is left alone."""
        if was_over:
            return copied(self.raw), 0.0, True, {**self.info, "finished": True}
        return copied(self.raw), 0.0, False, {}
