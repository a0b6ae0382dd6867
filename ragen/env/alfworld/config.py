"""The configuration of the ALFWorld environment: official games or generated tasks, and what is shown."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ragen.env.alfworld.tasks import TASK_TYPES
from ragen.env.checks import is_integer, is_number, require

_TYPE = "alfworld"
EVAL_DATASETS = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
"""The evaluation splits, by the names that RAGEN and ALFWorld use, and their folders in the official data."""


@dataclass
class AlfWorldEnvConfig:
    """Configuration of :class:`~ragen.env.alfworld.env.AlfWorldEnv`; accepts RAGEN 2026's keys.

    Attributes:
        data: The folder of the official games, ``json_2.1.1`` or its parent; None for generated tasks.
        eval_dataset: ``"eval_in_distribution"`` (scenes of the train split) or ``"eval_out_of_distribution"`` (others),
            for the modes ``val`` and ``test``.
        task_types: Types of tasks, by ALFWorld's numbers, 1 to 6.
        num_train_games: Number of games in the train split; -1 for all of the data, or 3553 generated ones.
        num_eval_games: Number of games in the evaluation split; -1 for all of the data, or 140 or 134 generated ones.
        max_steps: Maximum number of commands per episode.
        score: The reward of the command that completes the task.
        show_admissible: Whether observations list the admissible commands.
        config_file: RAGEN's key; accepted, but the file is not read.
        render_mode: ``"text"``.
    """

    data: str | None = None
    eval_dataset: str = "eval_in_distribution"
    task_types: list[int] = field(default_factory=lambda: list(TASK_TYPES))
    num_train_games: int = -1
    num_eval_games: int = -1
    max_steps: int = 50
    score: float = 10.0
    show_admissible: bool = True
    config_file: str | None = None
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; games are searched for when an environment is created.

        Raises:
            ConfigError: A value is invalid.
        """
        if self.data is not None:
            found = isinstance(self.data, str) and os.path.isdir(self.data)
            require(found, _TYPE, "data", self.data, "null or an existing folder")
            self.data = os.path.abspath(self.data)
        require(
            self.eval_dataset in EVAL_DATASETS, _TYPE, "eval_dataset", self.eval_dataset, " or ".join(EVAL_DATASETS)
        )
        types_ok = isinstance(self.task_types, list | tuple) and bool(self.task_types)
        types_ok = types_ok and all(is_integer(each) and each in TASK_TYPES for each in self.task_types)
        require(types_ok, _TYPE, "task_types", self.task_types, "a list of some of 1, 2, 3, 4, 5, 6")
        for key in ("num_train_games", "num_eval_games"):
            value = getattr(self, key)
            require(is_integer(value, 1) or value == -1, _TYPE, key, value, "-1 or an integer of at least 1")
        require(is_integer(self.max_steps, 1), _TYPE, "max_steps", self.max_steps, "an integer of at least 1")
        require(is_number(self.score), _TYPE, "score", self.score, "a number")
        require(isinstance(self.show_admissible, bool), _TYPE, "show_admissible", self.show_admissible, "a truth value")
        named = self.config_file is None or isinstance(self.config_file, str)
        require(named, _TYPE, "config_file", self.config_file, "null or a text; use data, task_types and max_steps")
        require(self.render_mode == "text", _TYPE, "render_mode", self.render_mode, "'text'")

    def split(self, mode: str | None) -> str:
        """The folder of a mode's split in the official data."""
        return "train" if mode in (None, "train") else EVAL_DATASETS[self.eval_dataset]
