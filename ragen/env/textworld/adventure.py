"""The base class of environments that run in one of TextWorld's engines."""

from __future__ import annotations

from typing import Any, ClassVar

from ragen.env.base import BaseLanguageBasedEnv
from ragen.env.game import PickledByConfig, TextGame


class Adventure(PickledByConfig, TextGame, BaseLanguageBasedEnv):
    """A text game whose engine belongs to its process.

    Attributes:
        game: The game being played; None before the first reset.
        admissible: The admissible commands, sorted.
        steps: Number of commands given in this episode.
    """

    cost_hint = "heavy"
    preload: ClassVar[tuple[str, ...]] = ("textworld",)  # its import takes a second

    game: Any = None
    admissible: list[str]
    steps: int
    _story: Any = None  # the engine with its loaded game, or None

    def _write(self, text: str, is_over: bool) -> None:
        """Set the observation, with the admissible commands, as in RAGEN 2026, if they are to be shown."""
        if self.config.show_admissible and not is_over:
            text += f"\n\nAdmissible actions: [{', '.join(self.admissible)}]"
        self.observation = text

    def close(self) -> None:
        """Close the engine."""
        if self._story is not None:
            self._story.close()
            self._story = None
