"""Configuration of MetaMathQA: where the problems are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ragen.env.checks import check, require
from ragen.env.rows import RowSource

PACKAGED_PROBLEMS = Path(__file__).parent / "data" / "problems.jsonl"
"""The problems that ship with the package."""


@dataclass
class MetaMathQAEnvConfig:
    """Configuration of :class:`~ragen.env.metamathqa.env.MetaMathQAEnv`.

    Attributes:
        dataset_path: A ``.parquet``, ``.jsonl`` or ``.json`` file of rows ``{query, response}``, a directory of such
            files, or a data set's name on the Hugging Face hub, such as ``meta-math/MetaMathQA``; None uses the
            problems of the package, one in five of them for validation alone. Training and validation draw from the
            same rows of any other data set, as in RAGEN, so name another one, or another split, for the tag to
            validate.
        cache_dir: Cache directory for hub data sets; None for the default of ``datasets``.
        split: The split of a directory or hub data set.
        render_mode: ``"text"``.
    """

    dataset_path: str | None = None
    cache_dir: str | None = None
    split: str = "train"
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; the problems are read when an environment is built.

        Raises:
            ConfigError: A value is invalid.
        """
        check(self)
        packaged_ok = self.dataset_path is not None or self.split == "train"
        require(packaged_ok, self, "split", "'train', the only split of the packaged problems")
        self.source()

    def source(self) -> RowSource:
        """The source of the problems."""
        location = self.dataset_path or str(PACKAGED_PROBLEMS)
        return RowSource("metamathqa", "dataset_path", location, ("query", "response"), self.split, self.cache_dir)
