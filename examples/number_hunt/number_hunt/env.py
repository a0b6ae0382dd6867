"""Find a hidden number: each guess is answered with "higher" or "lower"."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from ragen.env import BaseLanguageBasedEnv

NUMBER = re.compile(r"-?\d+")


@dataclass
class NumberHuntConfig:
    """What a tag may set under ``env_config``.

    Attributes:
        largest: The hidden number is one of 1, 2, ... up to this.
        guesses: How many guesses there are.
    """

    largest: int = 20
    guesses: int = 5

    def __post_init__(self) -> None:
        """Refuse what cannot be played."""
        if self.largest < 2 or self.guesses < 1:
            raise ValueError(f"largest = {self.largest}, guesses = {self.guesses}: expected at least 2 and 1.")


class NumberHunt(BaseLanguageBasedEnv):
    """The game. A model sees what ``render()`` gives, and nothing else."""

    config_class = NumberHuntConfig
    uses_global_rng = False  # it draws from a generator of its own

    def __init__(self, config: NumberHuntConfig | None = None) -> None:
        """Keep the configuration; the first episode begins with ``reset``."""
        self.config = config or NumberHuntConfig()

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Hide a number. All that follows is decided by configuration, seed and actions."""
        self.hidden = random.Random(seed).randint(1, self.config.largest)
        self.heard: list[str] = []
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Answer a guess."""
        found = NUMBER.search(action)
        guess = int(found[0]) if found else None
        solved = guess == self.hidden
        if guess is None:
            answer = "is no number"
        else:
            answer = "is it" if solved else "is too low" if guess < self.hidden else "is too high"
        self.heard.append(f"{action.strip()[:40]!r} {answer}.")
        done = solved or len(self.heard) >= self.config.guesses
        return self.render(), float(solved), done, {"success": solved, "guesses": len(self.heard)}

    def render(self, mode: str | None = None) -> str:
        """The text that the model sees."""
        left = self.config.guesses - len(self.heard)
        return "\n".join([f"A number from 1 to {self.config.largest} is hidden. {left} guesses left.", *self.heard])
