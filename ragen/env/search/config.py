"""The configuration of the search environment: passages, questions, search backend, rewards."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from ragen.env.checks import FILE, TRUTH, address, check, integer, null, number, one_of, or_null, require, some_of
from ragen.env.rows import RowSource
from ragen.env.search.world import MOST_HOPS

SERVER = "http://127.0.0.1:8000"


@dataclass
class SearchEnvConfig:
    """Configuration of :class:`~ragen.env.search.env.SearchEnv`; accepts RAGEN 2026's keys.

    Attributes:
        corpus: A JSONL file of ``{title, text}``, or of ``{contents}`` as in Search-R1; None for the generated world.
        questions: A ``.jsonl``, ``.json`` or ``.parquet`` file of rows, a directory of such files named after splits,
            or a data set on the Hugging Face hub; None for questions about the generated world.
        question_column: The column of questions.
        answer_column: The column of correct answers: a text, or a list of texts, any of which is correct.
        max_instances: Number of rows to use, from the start; None for all.
        backend: ``"fts5"`` (SQLite), ``"http"`` (a retrieval server) or ``"mock"`` (RAGEN 2026's two placeholders);
            None means ``"mock"`` with ``mock_mode``, ``"http"`` if ``retrieval_server_url``, or ``train_path`` without
            a ``corpus``, is given, else ``"fts5"``.
        style: Rules for actions, wording of replies and drawing of questions: ``"own"``, or ``"ragen"``, as RAGEN
            2026 does; None means ``"ragen"`` if ``train_path`` or ``mock_mode`` is given, else ``"own"``.
        retrieval_server_url: The address of a server; None means ``http://127.0.0.1:8000`` for ``"http"``.
        retrieval_timeout: The server's time-out in seconds.
        search_delay: Seconds added to each search, to simulate a remote engine locally.
        k: Number of passages per search; None means 5.
        max_searches: Maximum number of searches answered per episode; None for no limit.
        max_steps: Maximum number of actions per episode, which then ends without an answer.
        max_total_chars: Maximum number of characters of all passages of one search.
        reward: ``"exact"``: an answer must equal a correct one; ``"f1"``: partial word overlap suffices; None means
            ``"f1"`` in RAGEN's style, else ``"exact"``.
        correct_reward: The reward of a correct answer; with ``"f1"``, multiplied by the F1 score.
        incorrect_reward: The reward of any other answer.
        f1_threshold: With ``"f1"``, the lowest F1 score of a correct answer.
        world_seed: The seed of the generated world, for both splits.
        entities: The size of the generated world.
        hops: The numbers of relations that a generated question may follow.
        dataset_name: A key of RAGEN 2026; ignored.
        train_path: RAGEN 2026's name for ``questions``.
        max_search_results: RAGEN 2026's name for ``k``.
        mock_mode: A key of RAGEN 2026; True means ``backend: mock``.
        render_mode: ``"text"``.
    """

    corpus: str | None = None
    questions: str | None = None
    question_column: str = "question"
    answer_column: str = "ground_truth"
    max_instances: int | None = None
    backend: Literal["fts5", "http", "mock"] | None = None
    style: Literal["own", "ragen"] | None = None
    retrieval_server_url: str | None = None
    retrieval_timeout: float = 30.0
    search_delay: float = 0.0
    k: int | None = None
    max_searches: int | None = None
    max_steps: int = 10
    max_total_chars: int = 4000
    reward: Literal["exact", "f1"] | None = None
    correct_reward: float = 1.0
    incorrect_reward: float = 0.0
    f1_threshold: float = 0.3
    world_seed: int = 0
    entities: int = 600
    hops: list[int] = field(default_factory=lambda: [1, 2, 3])
    dataset_name: Any = ""
    train_path: str | None = None
    max_search_results: int | None = None
    mock_mode: bool = False
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; files are read when an environment is created.

        Raises:
            ConfigError: A value is invalid, or two contradict each other.
        """
        for theirs, ours in (("train_path", "questions"), ("max_search_results", "k")):
            if (value := getattr(self, theirs)) is not None:
                is_one = getattr(self, ours) in (None, value)
                require(is_one, self, theirs, f"null, since {ours}, another name for it, is given too")
                setattr(self, ours, value)
        url, corpus = self.retrieval_server_url, self.corpus
        if self.style is None:
            self.style = "ragen" if self.mock_mode or self.train_path is not None else "own"
        if self.backend is None:
            served = url is not None or (self.train_path is not None and corpus is None)
            self.backend = "mock" if self.mock_mode else "http" if served else "fts5"
        if self.backend == "http" and url is None:
            self.retrieval_server_url = SERVER
        self.k = 5 if self.k is None else self.k
        is_ragens = self.style == "ragen"
        if self.reward is None:
            self.reward = "f1" if is_ragens else "exact"
        limit = null(" with style='ragen', which has no limit") if is_ragens else or_null(integer(0))
        is_local = self.backend not in ("http", "mock")
        file = or_null(FILE) if is_local else null(f" with backend={self.backend!r}, which needs none")
        check(
            self,
            mock_mode=TRUTH if self.backend == "mock" else one_of(False),
            retrieval_server_url=or_null(address("http://", "https://")),
            corpus=file,
            max_searches=limit,
            f1_threshold=number(0, 1),
            retrieval_timeout=number(0.001),
            search_delay=number(0, 60),
            world_seed=integer(0),
            entities=integer(50, 20_000),
            hops=some_of(range(1, MOST_HOPS + 1)),
        )
        if corpus is not None:
            self.corpus = os.path.abspath(corpus)
        if self.questions is not None:
            self.questions = self.source("train").location
        if self.backend != "mock":
            is_own = corpus is not None or self.backend == "http"
            expected = (
                "questions about the corpus or the server's"
                if is_own
                else ("null, or a corpus (or backend='http') beside it: the generated world has questions of its own")
            )
            require(is_own == (self.questions is not None), self, "questions", expected)

    @property
    def replayable(self) -> bool:
        """Whether seed and actions determine an episode; not with a server, whose answers may change."""
        return self.backend != "http"

    def source(self, split: str) -> RowSource:
        """The location of the user's questions for a split."""
        columns = (self.question_column, self.answer_column)
        return RowSource("search", "questions", self.questions or "", columns, split)
