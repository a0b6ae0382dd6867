"""The configuration of the search environment: passages, questions, search backend, rewards."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ragen.env.checks import is_integer, is_number, require
from ragen.env.rows import RowSource, absolute, check_source
from ragen.env.search.dialogue import STYLES
from ragen.env.search.world import MOST_HOPS

_TYPE = "search"
BACKENDS = ("fts5", "tantivy", "http", "mock")
REWARDS = ("exact", "f1")
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
        backend: ``"fts5"`` (SQLite), ``"tantivy"`` (the extra ``search``), ``"http"`` (a retrieval server) or
            ``"mock"`` (RAGEN 2026's two placeholders); None means ``"mock"`` with ``mock_mode``, ``"http"`` if
            ``retrieval_server_url``, or ``train_path`` without a ``corpus``, is given, else ``"fts5"``.
        style: How actions are parsed, replies worded and questions drawn: ``"own"``, or ``"ragen"``, exactly as RAGEN
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
    backend: str | None = None
    style: str | None = None
    retrieval_server_url: str | None = None
    retrieval_timeout: float = 30.0
    search_delay: float = 0.0
    k: int | None = None
    max_searches: int | None = None
    max_steps: int = 10
    max_total_chars: int = 4000
    reward: str | None = None
    correct_reward: float = 1.0
    incorrect_reward: float = 0.0
    f1_threshold: float = 0.3
    world_seed: int = 0
    entities: int = 600
    hops: list[int] = field(default_factory=lambda: [1, 2, 3])
    dataset_name: str = ""
    train_path: str | None = None
    max_search_results: int | None = None
    mock_mode: bool = False
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; files are read when an environment is created.

        Raises:
            ConfigError: A value is invalid, or two contradict each other.
        """
        self._take_names_of_ragen()
        self._choose_backend()
        self._check_data()
        for key, low in (("k", 1), ("max_steps", 1), ("max_total_chars", 1)):
            require(is_integer(getattr(self, key), low), _TYPE, key, getattr(self, key), "an integer of at least 1")
        for key, low in (("max_searches", 0), ("max_instances", 1)):
            value = getattr(self, key)
            ok = value is None or is_integer(value, low)
            require(ok, _TYPE, key, value, f"null or an integer of at least {low}")
        require(self.reward in REWARDS, _TYPE, "reward", self.reward, f"null or one of {', '.join(REWARDS)}")
        searches_ok = self.max_searches is None or self.style == "own"
        require(searches_ok, _TYPE, "max_searches", self.max_searches, "null with style='ragen', which has no limit")
        for key in ("correct_reward", "incorrect_reward"):
            require(is_number(getattr(self, key)), _TYPE, key, getattr(self, key), "a number")
        require(is_number(self.f1_threshold, 0, 1), _TYPE, "f1_threshold", self.f1_threshold, "a number from 0 to 1")
        timeout_ok = is_number(self.retrieval_timeout, 0.001)
        require(timeout_ok, _TYPE, "retrieval_timeout", self.retrieval_timeout, "seconds, more than 0")
        require(is_number(self.search_delay, 0, 60), _TYPE, "search_delay", self.search_delay, "seconds, from 0 to 60")
        require(is_integer(self.world_seed, 0), _TYPE, "world_seed", self.world_seed, "an integer of at least 0")
        entities_ok = is_integer(self.entities, 50, 20_000)
        require(entities_ok, _TYPE, "entities", self.entities, "an integer from 50 to 20000")
        hops_ok = isinstance(self.hops, list | tuple) and bool(self.hops)
        hops_ok = hops_ok and all(is_integer(each, 1, MOST_HOPS) for each in self.hops)
        require(hops_ok, _TYPE, "hops", self.hops, f"a list of integers from 1 to {MOST_HOPS}")
        require(self.render_mode == "text", _TYPE, "render_mode", self.render_mode, "'text'")

    def _take_names_of_ragen(self) -> None:
        require(isinstance(self.mock_mode, bool), _TYPE, "mock_mode", self.mock_mode, "a truth value")
        if self.style is None:
            self.style = "ragen" if self.mock_mode or self.train_path is not None else "own"
        style_ok = isinstance(self.style, str) and self.style in STYLES
        require(style_ok, _TYPE, "style", self.style, f"null or one of {', '.join(STYLES)}")
        if self.reward is None:
            self.reward = STYLES[self.style].reward
        for theirs, ours in (("train_path", "questions"), ("max_search_results", "k")):
            given = getattr(self, theirs)
            if given is not None:
                both = getattr(self, ours) not in (None, given)
                require(not both, _TYPE, theirs, given, f"null, since {ours}, another name for it, is given too")
                setattr(self, ours, given)
        self.k = 5 if self.k is None else self.k

    def _choose_backend(self) -> None:
        url = self.retrieval_server_url
        if self.backend is None:
            served = url is not None or (self.train_path is not None and self.corpus is None)
            self.backend = "mock" if self.mock_mode else "http" if served else "fts5"
        require(self.backend in BACKENDS, _TYPE, "backend", self.backend, f"null or one of {', '.join(BACKENDS)}")
        mock_ok = not self.mock_mode or self.backend == "mock"
        require(mock_ok, _TYPE, "mock_mode", self.mock_mode, f"false with backend={self.backend!r}")
        if self.backend == "http":
            self.retrieval_server_url = url = SERVER if url is None else url
            url_ok = isinstance(url, str) and url.startswith(("http://", "https://"))
            require(url_ok, _TYPE, "retrieval_server_url", url, "an address that begins with http:// or https://")

    def _check_data(self) -> None:
        for key in ("question_column", "answer_column"):
            value = getattr(self, key)
            require(isinstance(value, str) and bool(value), _TYPE, key, value, "the name of a column")
        if self.corpus is not None:
            found = isinstance(self.corpus, str) and os.path.isfile(self.corpus)
            require(found, _TYPE, "corpus", self.corpus, "null or an existing JSONL file")
            own_ok = self.backend not in ("http", "mock")
            require(own_ok, _TYPE, "corpus", self.corpus, f"null with backend={self.backend!r}, which needs none")
            self.corpus = os.path.abspath(self.corpus)
        if self.questions is not None:
            check_source(self.source("train"))
            self.questions = absolute(self.questions)
        if self.backend == "mock":
            return
        if self.corpus is not None or self.backend == "http":
            require(self.questions is not None, _TYPE, "questions", None, "questions about the corpus or the server's")
        else:
            expected = "null, or a corpus (or backend='http') beside it: the generated world has questions of its own"
            require(self.questions is None, _TYPE, "questions", self.questions, expected)

    @property
    def replayable(self) -> bool:
        """Whether seed and actions determine an episode; not with a server, whose answers may change."""
        return self.backend != "http"

    def source(self, split: str) -> RowSource:
        """The location of the user's questions for a split."""
        columns = (self.question_column, self.answer_column)
        return RowSource(_TYPE, "questions", self.questions or "", columns, split)
