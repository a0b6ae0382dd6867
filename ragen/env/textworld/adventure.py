"""The base class of environments that run in one of TextWorld's engines."""

from __future__ import annotations

from typing import Any, ClassVar

from ragen.env.base import BaseLanguageBasedEnv
from ragen.env.text import PickledByConfig, TextObservation


class Adventure(PickledByConfig, TextObservation, BaseLanguageBasedEnv):
    """A text game whose engine belongs to its process.

    Attributes:
        game: The game being played; None before the first reset.
        admissible: The admissible commands, sorted.
        steps: Number of commands given in this episode.
    """

    uses_global_rng = False
    cost_hint = "heavy"
    preload: ClassVar[tuple[str, ...]] = ("textworld",)  # its import takes a second

    game: Any
    admissible: list[str]
    steps: int
    _story: Any  # the engine with its loaded game, or None

    def _write(self, text: str, is_over: bool) -> str:
        """Set the observation, with the admissible commands, as in RAGEN 2026, if they are to be shown."""
        if self.config.show_admissible and not is_over:
            text += f"\n\nAdmissible actions: [{', '.join(self.admissible)}]"
        self.observation = text
        return text

    def close(self) -> None:
        """Close the engine."""
        if self._story is not None:
            self._story.close()
            self._story = None
