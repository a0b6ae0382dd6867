"""The configuration of the ALFWorld environment: official games or generated tasks, and what is shown."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ragen.env.alfworld.tasks import TASK_TYPES
from ragen.env.checks import ALL_OR_SOME, FOLDER, check, one_of, or_null, some_of

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
        check(
            self,
            data=or_null(FOLDER),
            eval_dataset=one_of(*EVAL_DATASETS),
            task_types=some_of(TASK_TYPES),
            num_train_games=ALL_OR_SOME,
            num_eval_games=ALL_OR_SOME,
        )
        self.data = self.data and os.path.abspath(self.data)

    def split(self, mode: str | None) -> str:
        """The folder of a mode's split in the official data."""
        return "train" if mode in (None, "train") else EVAL_DATASETS[self.eval_dataset]
