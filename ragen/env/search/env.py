"""Search: a question, a search engine, and an answer that is compared with the correct ones.

Results depend only on the corpus and the query, except with a retrieval server. Its episodes are declared not
replayable, and the engine resumes them from snapshots, which contain everything shown so far.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.game import PickledBySnapshot, TextGame
from ragen.env.resources import Lease
from ragen.env.rows import RowSource, is_of, load_rows
from ragen.env.search.config import SearchEnvConfig
from ragen.env.search.dialogue import STYLES, Verdict, extracted, judge
from ragen.env.search.index import hold_index
from ragen.env.search.world import Question, ask, generate, solve
from ragen.errors import ConfigError

_SPLITS = {"train": ("train",), "val": ("val", "validation", "dev", "test"), "test": ("test", "val", "validation")}


class SearchEnv(PickledBySnapshot, TextGame, BaseLanguageBasedEnv):
    """Asks a question that is answered with the help of a search engine.

    Attributes:
        question: The question; None before the first reset.
        steps: Number of actions taken in this episode.
        searches: Number of searches in this episode.
    """

    config_class = SearchEnvConfig
    seed_limit = None
    question: Any = None  # a Question once reset
    _held: Lease[Any] | None = None
    action_hint = "search[...] or answer[...]"

    def __init__(self, config: SearchEnvConfig | None = None) -> None:
        """Open the index and check that there are questions.

        Raises:
            ConfigError: The questions or the passages cannot be read.
        """
        super().__init__(config)
        self._style = STYLES[str(self.config.style)]
        if self.config.questions is not None:
            questions_of(self.config.source("train"), self.config.max_instances, "")
        self._index()

    def _index(self) -> Any:
        if self._held is None:
            self._held = hold_index(self.config)
        return self._held.value

    def _begin(self, seed: int, mode: str | None) -> None:
        """Draw a question.

        Raises:
            ConfigError: The split has no questions.
        """
        self.question = self._draw(seed, mode if mode in _SPLITS else "train")
        self.steps = self.searches = 0
        self.observation = self._style.opening(self.question, self._searches_left())

    save, load = snapshots("seed", "question", "steps", "searches", "observation")

    def _draw(self, seed: int, split: str) -> Question:
        config = self.config
        if config.questions is None:
            return ask(generate(config.world_seed, config.entities), seed, split, config.hops)
        if not self._style.by_splits:
            rows = questions_of(config.source("train"), config.max_instances, "")
            return rows[seed % len(rows)]
        source, part = split_of(config.source(split))
        rows = questions_of(source, config.max_instances, part)
        return rows[Random(seed).randrange(len(rows))]

    def _searches_left(self) -> int | None:
        most = self.config.max_searches
        return None if most is None else max(0, most - self.searches)

    def _play(self, action: str) -> StepResult:
        """Search, or answer.

        Args:
            action: Any text; see :func:`read_action`.

        Returns:
            The observation: the passages found, or the verdict on the answer; the reward (0 until the episode is over);
            whether it is over; and info with ``success``, ``searches``, ``exact_match`` and ``f1``, or RAGEN 2026's.

        Raises:
            SearchError: The retrieval server did not answer.
        """
        style, config = self._style, self.config
        kind, words = style.read(action)
        effective, verdict = style.accepts(kind, words, self._searches_left()), None
        self.steps += 1
        done, reward = self.steps >= config.max_steps, 0.0
        if effective and kind != "search":
            verdict = self._judged(extracted(words) if kind == "free" else words)
            done, reward, said = True, verdict.reward, style.answered(kind, verdict)
        else:
            said = self._found(words) if effective else style.refused(kind, words)
            self.searches += effective
            said = style.next(said, kind, done, self._searches_left())
            if done and style.unanswered:
                reward = float(config.incorrect_reward)
        self.observation = said.encode("utf-8", "replace").decode()
        return self.observation, reward, done, style.info(kind, words, effective, self.searches, verdict)

    def _found(self, words: str) -> str:
        config = self.config
        most = None if config.backend == "mock" else config.max_total_chars
        time.sleep(config.search_delay)
        return self._style.found(words, self._index().search(words, config.k), most)

    def _judged(self, answer: str) -> Verdict:
        config = self.config
        rewards = config.correct_reward, config.incorrect_reward
        return judge(answer, self.question.answers, rewards, config.f1_threshold, config.reward == "f1")

    def rollout_info(self) -> dict[str, Any]:
        """The correct answers."""
        return {} if self.question is None else {"answers": list(self.question.answers)}

    def close(self) -> None:
        """Release the index."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def example_action(self, rng: Random) -> str:
        """A search for a name or for words of the question, or an answer."""
        text, answer = f"Question: {self.question.text}\n{self.observation}", self._style.answer
        words = re.findall(r"\w{4,}", self.question.text) or ["nothing"]
        searches = [solve(text) or "", f"<search>{' '.join(words)}</search>", f"search[{rng.choice(words)}]"]
        return rng.choice([*searches, *searches, answer.format(rng.choice(words)), "search[]"])


# The user's questions


def split_of(source: RowSource) -> tuple[RowSource, str]:
    """The location of a split's rows, and which part of them to use.

    A single file is divided: one question in five is reserved for validation. Directories and data sets have named
    splits.

    Raises:
        ConfigError: The split does not exist.
    """
    if os.path.isfile(source.location):
        return replace(source, split="train"), source.split
    first: ConfigError | None = None
    for name in _SPLITS[source.split]:
        named = replace(source, split=name)
        try:
            load_rows(named)
        except ConfigError as error:
            first = first or error
        else:
            return named, ""
    assert first is not None
    raise first


@lru_cache(maxsize=8)
def questions_of(source: RowSource, most: int | None, part: str) -> tuple[Question, ...]:
    """The questions of a source, or of one part of it.

    Args:
        source: The location of the rows.
        most: Number of rows to use, from the start; None for all.
        part: The split, for a divided file; "" for all.

    Raises:
        ConfigError: A row has no question or no answer, or there are no rows.
    """
    found = []
    for number, (text, answers) in enumerate(islice(load_rows(source), most), 1):
        answers = [answers] if isinstance(answers, str | int | float) else answers
        if not isinstance(text, str) or not isinstance(answers, list | tuple) or not answers:
            columns = " and ".join(map(repr, source.columns))
            raise source.error(f"row {number} needs a text and one or more answers in {columns}.")
        if not part or is_of(part, text):
            found.append(Question(text, tuple(map(str, answers))))
    if not found:
        raise source.error(f"there are no rows{f' for the split {part!r}' if part else ''}.")
    return tuple(found)
