"""RAGEN 2026's configuration of DeepCoder, and its translation to that of the code environment."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.checks import check
from ragen.env.code.config import CodeEnvConfig
from ragen.env.code.problems import GENERATED

_TYPE = "deepcoder"


@dataclass
class DeepCoderEnvConfig:
    """Configuration of :class:`~ragen.env.deepcoder.env.DeepCoderEnv`; names and defaults are RAGEN's.

    Attributes:
        render_mode: ``"text"``.
        max_steps: Maximum number of programs per episode.
        invalid_action_score: The reward of an empty answer.
        dataset_path: A JSONL file in DeepCoder's format; None for generated problems, where RAGEN downloads a data set.
        cache_dir: Accepted but unused, since nothing is downloaded.
        split: The split of generated problems: ``"train"``, or any other name for held-out ones.
        cpu_seconds: Processor time limit of a program in seconds, for all tests together.
        memory_mb: Memory limit of a program, in MiB.
    """

    render_mode: str = "text"
    max_steps: int = 1
    invalid_action_score: float = 0.0
    dataset_path: str | None = None
    cache_dir: str | None = None
    split: str = "test"
    cpu_seconds: float = 3.0
    memory_mb: int = 256

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid.
        """
        check(_TYPE, self)
        self.code = CodeEnvConfig(
            dataset=GENERATED if self.dataset_path is None else self.dataset_path,
            max_tries=self.max_steps,
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
        )
