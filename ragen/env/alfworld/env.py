"""ALFWorld: household tasks in text, in TextWorld's PDDL engine, in this process."""

from __future__ import annotations

from random import Random
from typing import Any

from ragen.env.alfworld.config import AlfWorldEnvConfig
from ragen.env.alfworld.engine import story
from ragen.env.alfworld.tasks import GENERATED, HouseholdGame, alfworld_folder, generate, official_games, read_game
from ragen.env.textworld.adventure import Adventure


class AlfWorldEnv(Adventure):
    """Does household tasks."""

    config_class = AlfWorldEnvConfig
    extra = "alfworld"
    preload = ("textworld", "ragen.env.alfworld.grammar")
    action_hint = "a command, such as: go to shelf 1"

    def __init__(self, config: AlfWorldEnvConfig | None = None) -> None:
        """Check that ALFWorld is installed and that there are games.

        Raises:
            ConfigError: The folder of official games contains none.
            MissingExtraError: ALFWorld, TextWorld or the planner is not installed.
        """
        super().__init__(config)
        alfworld_folder()
        if self.config.data is not None:
            official_games(self.config.data, "train", tuple(sorted(self.config.task_types)))

    def _begin(self, seed: int, mode: str | None) -> None:
        """Start a game. Its problem is translated unless it is in this machine's cache.

        Raises:
            ConfigError: The split has no games.
        """
        self.game = self._game(seed, self.config.split(mode))
        if self._story is None:
            self._story = story()
        self.steps, self._over = 0, False
        self._show(self._story.begin(self.game))

    def _game(self, seed: int, split: str) -> HouseholdGame:
        config = self.config
        most = config.num_train_games if split == "train" else config.num_eval_games
        types = tuple(sorted(config.task_types))
        if config.data is None:
            return generate(seed % (GENERATED[split] if most == -1 else most), split, types)
        files = official_games(config.data, split, types)
        files = files if most == -1 else files[:most]
        return read_game(files[seed % len(files)])

    def _show(self, words: str) -> None:
        self.admissible = [] if self._over else list(self._story.state["admissible_commands"])
        self._write(words.strip())

    def _position(self) -> int:
        return int(self._story.applied)

    def _carry_out(self, command: str, valid: bool) -> tuple[float, bool]:
        """Only admissible commands have an effect; the one that completes the task earns ``score``."""
        words = "Nothing happens."
        if valid:
            state, _, self._over = self._story.step(command)
            words = str(state.feedback)
        self._show(words)
        return float(self.config.score) if self._over else 0.0, self._over

    def rollout_info(self) -> dict[str, Any]:
        """The type of the task, by ALFWorld's name."""
        return {} if self.game is None else {"task_type": self.game.kind}

    def example_action(self, rng: Random) -> str:
        """Mostly an admissible command; otherwise one that is not."""
        return rng.choice([*self.admissible, "take the moon", "go to cabinet 99"])
