"""What games in text have in common that run in an engine of TextWorld's: how they are kept, moved and closed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from ragen.env.base import BaseLanguageBasedEnv
from ragen.env.text import TextObservation
from ragen.env.textworld.text import with_admissible


class Adventure(TextObservation, BaseLanguageBasedEnv):
    """A game whose engine is no part of what is saved: it is made again where the game goes.

    Attributes:
        game: What is played; None before the first reset.
        admissible: The commands that can be carried out, sorted.
        steps: Commands of this episode.
    """

    uses_global_rng = False
    cost_hint = "heavy"
    preload: ClassVar[tuple[str, ...]] = ("textworld",)  # a second, for which no new worker need wait

    game: Any
    admissible: list[str]
    steps: int
    _story: Any  # the engine, with the game that it has loaded; None without one

    @abstractmethod
    def save(self) -> Any:
        """All of a game that has begun; None before. Each class declares its own: see :class:`BaseEnv`."""

    @abstractmethod
    def load(self, saved: Any) -> None:
        """Become what was saved."""

    @abstractmethod
    def _forget(self) -> None:
        """Be as before the first reset, with no engine."""

    def _write(self, text: str, is_over: bool) -> str:
        """Show a text, with the commands that can be carried out where they are wanted."""
        listed = self.config.show_admissible and not is_over
        self.observation = with_admissible(text, self.admissible) if listed else text
        return self.observation

    def _put_away(self) -> None:
        """Close, and be as before the first reset."""
        self.close()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """The engine is made again where this goes."""
        return {"config": self.config, "_saved": self.save()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See ``load``."""
        self.config = state["config"]
        self._forget()
        self.load(state["_saved"])

    def close(self) -> None:
        """Let go of the engine."""
        if self._story is not None:
            self._story.close()
            self._story = None
