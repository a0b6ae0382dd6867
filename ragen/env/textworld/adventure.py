"""The base class of environments that run in one of TextWorld's engines."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from ragen.env.base import BaseLanguageBasedEnv, StepResult
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

    longest: ClassVar[int] = 1000  # characters of a command
    game: Any = None
    admissible: list[str]
    steps: int
    _story: Any = None  # the engine with its loaded game, or None
    _over: bool

    def _play(self, action: str) -> StepResult:
        """Carry out a command.

        Args:
            action: Any text; case and spaces do not matter.

        Returns:
            The observation; the reward; whether the episode is over; and info with ``success``.
        """
        command, before = " ".join(action[: self.longest + 1].lower().split()), self._position()
        valid = command in self.admissible
        self.steps += 1
        reward, won = (0.0, False) if self._over else self._carry_out(command, valid)
        info = {"action_is_valid": valid, "action_is_effective": self._position() != before, "success": won}
        return self.observation, reward, self._over or self.steps >= self.config.max_steps, info

    @abstractmethod
    def _position(self) -> Any:
        """A value that a command with an effect changes."""

    @abstractmethod
    def _carry_out(self, command: str, valid: bool) -> tuple[float, bool]:
        """Carry out a command before the game is over; returns its reward, and whether it wins the game."""

    def _write(self, text: str) -> None:
        """Set the observation, with the admissible commands, as in RAGEN 2026, if they are to be shown."""
        if self.config.show_admissible and not self._over:
            text += f"\n\nAdmissible actions: [{', '.join(self.admissible)}]"
        self.observation = text

    def close(self) -> None:
        """Close the engine."""
        if self._story is not None:
            self._story.close()
            self._story = None
