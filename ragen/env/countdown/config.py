"""Configuration of Countdown: where the puzzles are, how many to take, and what answers score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ragen.env.checks import check
from ragen.env.rows import RowSource

PACKAGED_PUZZLES = Path(__file__).parent / "data" / "puzzles.jsonl"
"""The puzzles that ship with the package."""


@dataclass
class CountdownEnvConfig:
    """Configuration of :class:`~ragen.env.countdown.env.CountdownEnv`.

    Attributes:
        train_path: A ``.parquet``, ``.jsonl`` or ``.json`` file of rows ``{nums, target}``, a directory of such files,
            or a data set's name on the Hugging Face hub; None uses the puzzles of the package, one in
            five of them for validation alone. Training and validation count through the same rows of any other data
            set, as in RAGEN, so name another one for the tag to validate.
        max_instances: Number of rows to read, from the first; those that plus and minus cannot solve are dropped.
        score: Reward of a right answer.
        format_score: Reward of a wrong answer that uses each number once.
        render_format: ``"text"``.
        render_mode: ``"text"``.
    """

    train_path: str | None = None
    max_instances: int = 20_000
    score: float = 1
    format_score: float = 0.1
    render_format: Literal["text"] = "text"
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; the puzzles are read when an environment is built.

        Raises:
            ConfigError: A value is invalid.
        """
        check(self)
        self.source()

    def source(self) -> RowSource:
        """The source of the puzzles."""
        return RowSource("countdown", "train_path", self.train_path or str(PACKAGED_PUZZLES), ("nums", "target"))
