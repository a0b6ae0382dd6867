"""RAGEN 2026's configuration of DeepCoder, and its translation to that of the code environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ragen.env.code.config import CodeEnvConfig
from ragen.env.code.problems import GENERATED


@dataclass
class DeepCoderEnvConfig(CodeEnvConfig):
    """Configuration of :class:`~ragen.env.deepcoder.env.DeepCoderEnv`; names and defaults are RAGEN's.

    Attributes:
        max_steps: Maximum number of programs per episode; sets ``max_tries``.
        invalid_action_score: The reward of an empty answer.
        dataset_path: A JSONL file in DeepCoder's format; None for generated problems, where RAGEN downloads a data set.
            Sets ``dataset``.
        cache_dir: Accepted but unused, since nothing is downloaded.
        split: The split of generated problems: ``"train"``, or any other name for held-out ones.
        cpu_seconds: Processor time limit of a program in seconds, for all tests together.
    """

    dataset: str = field(default=GENERATED, init=False)
    max_tries: int = field(default=1, init=False)
    reward: Literal["share", "all"] = field(default="share", init=False)
    max_steps: int = 1
    invalid_action_score: float = 0.0
    dataset_path: str | None = None
    cache_dir: str | None = None
    split: str = "test"
    cpu_seconds: float = 3.0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid.
        """
        self.dataset, self.max_tries = self.dataset_path or GENERATED, self.max_steps
        super().__post_init__()
