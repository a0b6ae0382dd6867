"""Search: a question, a search engine, and an answer that is compared with the right ones.

What is found follows from the corpus and the query alone, except with a retrieval server: its configuration says that
episodes cannot be replayed, and the engine goes on from snapshots in which everything that was shown stands.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any

from ragen.env.base import BaseLanguageBasedEnv
from ragen.env.checks import check_was_reset, checked_seed
from ragen.env.rows import RowSource, load_rows
from ragen.env.search.config import SearchEnvConfig
from ragen.env.search.index import Index, Server, hold_index
from ragen.env.search.world import Passage, Question, World, ask, generate, is_held_out, solve
from ragen.env.text import TextObservation
from ragen.errors import ConfigError
from ragen.resources import Lease

READ_LIMIT = 10_000
"""Characters of the longest action that is read."""

_ACTION = re.compile(r"(search|answer|finish)\s*\[(.*)\]", re.S | re.I)
_TAG = re.compile(r"<(search|answer)>(.*?)</\1>", re.S | re.I)
_HINT = "search[...] or answer[...]"
_SPLITS = {"train": ("train",), "val": ("val", "validation", "dev", "test"), "test": ("test", "val", "validation")}


def read_action(action: str) -> tuple[str, str]:
    """What an action does and with which words.

    Args:
        action: ``search[...]``, ``answer[...]``, RAGEN's ``finish[...]``, Search-R1's ``<search>`` or ``<answer>``, of
            which the last counts; any other text is an answer, as it is where a rollout has taken the tag away.

    Returns:
        ``"search"``, ``"answer"`` or ``"none"``, and the words.
    """
    text = action.strip()
    if not text or len(text) > READ_LIMIT:
        return "none", ""
    if found := _ACTION.fullmatch(text):
        return ("search" if found[1].lower() == "search" else "answer"), found[2].strip()
    if tags := _TAG.findall(text):
        return tags[-1][0].lower(), tags[-1][1].strip()
    return "answer", text


def normalized(text: str) -> str:
    """An answer as SQuAD's and HotpotQA's evaluations compare it: lower case, no punctuation, no articles."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def f1_score(answer: str, right: str) -> float:
    """The harmonic mean of precision and recall of an answer's words; yes, no and no answer are right or wrong."""
    given, wanted = normalized(answer), normalized(right)
    if given != wanted and {given, wanted} & {"yes", "no", "noanswer"}:
        return 0.0
    shared = sum((Counter(given.split()) & Counter(wanted.split())).values())
    return 2 * shared / (len(given.split()) + len(wanted.split())) if shared else 0.0


class SearchEnv(TextObservation, BaseLanguageBasedEnv):
    """Find out what is asked, and answer.

    Attributes:
        question: The question; None before the first reset.
        steps: Actions of this episode.
        searches: Searches of this episode.
    """

    config_class = SearchEnvConfig
    uses_global_rng = False
    action_hint = _HINT

    def __init__(self, config: SearchEnvConfig | None = None) -> None:
        """Take a configuration and look whether there are questions, and passages.

        Raises:
            ConfigError: Questions or passages cannot be read.
            MissingExtraError: The backend's package is not installed.
        """
        self.config = config or SearchEnvConfig()
        self.question: Question | None = None
        self.steps = self.searches = 0
        self._drawn: tuple[int, str] = (0, "train")
        self._held: Lease[Index] | None = None
        self._server: Server | None = None
        if self.config.questions is not None:
            questions_of(self.config.source("train"), self.config.max_instances, "")
        self._index()

    def _world(self) -> World:
        return generate(self.config.world_seed, self.config.entities)

    def _index(self) -> Index:
        config = self.config
        if config.backend == "http":
            if self._server is None:
                self._server = Server(str(config.retrieval_server_url), config.retrieval_timeout)
            return self._server
        if self._held is None:
            self._held = hold_index(str(config.backend), config.corpus, None if config.corpus else self._world())
        return self._held.value

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Draw a question; see :meth:`BaseEnv.reset`.

        Raises:
            ConfigError: There is no question for this split.
        """
        self._drawn = checked_seed("search", seed), mode if mode in _SPLITS else "train"
        self.question = self._draw()
        self.steps = self.searches = 0
        self.observation = f"Question: {self.question.text}\n{self._choices()}"
        return self.observation

    def _draw(self) -> Question:
        (seed, split), config = self._drawn, self.config
        if config.questions is None:
            return ask(self._world(), seed, split, config.hops)
        source, part = split_of(config.source(split))
        rows = questions_of(source, config.max_instances, part)
        return rows[Random(seed).randrange(len(rows))]

    def _choices(self) -> str:
        left = self._searches_left()
        if left is None:
            return f"Say {_HINT}."
        return f"Searches left: {left}. Say {_HINT if left else 'answer[...]'}."

    def _searches_left(self) -> int | None:
        most = self.config.max_searches
        return None if most is None else max(0, most - self.searches)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Search, or answer.

        Args:
            action: See :func:`read_action`; any text.

        Returns:
            The passages that were found or what became of the answer, the reward (0 until the episode is over), whether
            it is over, and info: ``success``, ``searches``, and in the end ``exact_match`` and ``f1``.

        Raises:
            StateError: The environment was never reset.
            SearchError: The retrieval server did not answer.
        """
        check_was_reset("search", self.question is not None)
        kind, words = read_action(action)
        if kind == "search" and words and self._searches_left() != 0:
            shown, effective = self._found(words), True
        elif kind == "answer" and words:
            return self._answered(words)
        else:
            shown, effective = _refusal(kind, words), False
        self.steps += 1
        self.searches += effective
        done = self.steps >= self.config.max_steps
        self.observation = f"{shown}\n{'That was the last action; there is no answer.' if done else self._choices()}"
        reward = float(self.config.incorrect_reward) if done else 0.0
        return self.observation, reward, done, self._info(effective, effective)

    def _found(self, words: str) -> str:
        count = self.config.k
        assert count is not None
        found = self._index().search(words, count)
        return shown(found, self.config.max_total_chars)

    def _answered(self, words: str) -> tuple[str, float, bool, dict[str, Any]]:
        assert self.question is not None
        config = self.config
        exact = any(normalized(words) == normalized(right) for right in self.question.answers)
        f1 = 1.0 if exact else max(f1_score(words, right) for right in self.question.answers)
        success = exact or (config.reward == "f1" and f1 > 0 and f1 >= config.f1_threshold)
        reward = config.correct_reward * f1 if success else config.incorrect_reward
        self.steps += 1
        self.observation = "The answer is right." if exact else "The answer is wrong."
        if success and not exact:
            self.observation = "The answer is right in part."
        return self.observation, float(reward), True, self._info(True, True, success, exact, f1)

    def _info(
        self, valid: bool, effective: bool, success: bool = False, exact: bool = False, f1: float = 0.0
    ) -> dict[str, Any]:
        return {
            "action_is_valid": valid,
            "action_is_effective": effective,
            "success": success,
            "searches": self.searches,
            "exact_match": exact,
            "f1": f1,
        }

    def rollout_info(self) -> dict[str, Any]:
        """The right answers."""
        return {} if self.question is None else {"answers": list(self.question.answers)}

    def save(self) -> Any:
        """All that an episode is; see :class:`BaseEnv`."""
        if self.question is None:
            return None
        return self._drawn, self.steps, self.searches, self.observation

    def load(self, saved: Any) -> None:
        """Become what was saved."""
        if saved is None:
            self.question = None
            return
        self._drawn, self.steps, self.searches, self.observation = saved
        self.question = self._draw()

    def __getstate__(self) -> dict[str, Any]:
        """The question is drawn again, and the index opened again, where this goes."""
        return {"config": self.config, "_saved": self.save()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :meth:`load`."""
        self.config, self._held, self._server = state["config"], None, None
        self.question, self._drawn = None, (0, "train")
        self.steps = self.searches = 0
        self.load(state["_saved"])

    def close(self) -> None:
        """Let go of the index."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def example_action(self, rng: Random) -> str:
        """A search for a name in what is shown or for words of the question, or an answer."""
        assert self.question is not None
        text = f"Question: {self.question.text}\n{self.observation}"
        words = re.findall(r"\w{4,}", self.question.text) or ["nothing"]
        searches = [solve(text) or "", f"<search>{' '.join(words)}</search>", f"search[{rng.choice(words)}]"]
        return rng.choice([*searches, *searches, f"answer[{rng.choice(words)}]", "search[]"])


def _refusal(kind: str, words: str) -> str:
    if kind == "search":
        return "There are no searches left." if words else "There is nothing to search for."
    return "That is no answer." if kind == "answer" else "That is no action."


def shown(passages: Sequence[Passage], most: int) -> str:
    """Passages as they are shown, in so many characters."""
    if not passages:
        return "Nothing was found."
    lines = [
        f"[{number}] {title}: {text}" if title else f"[{number}] {text}"
        for number, (title, text) in enumerate(passages, 1)
    ]
    text = "\n".join(lines).encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[:most]} ..."


# Questions of the user's


def split_of(source: RowSource) -> tuple[RowSource, str]:
    """Where the rows of a split are, and which part of them it is.

    A single file is divided: one question in five is kept for validation. Elsewhere splits have names of their own.

    Raises:
        ConfigError: There is no such split.
    """
    if os.path.isfile(source.location):
        part = "train" if source.split == "train" else "val"
        return RowSource(source.env_type, source.key, source.location, source.columns), part
    first: ConfigError | None = None
    for name in _SPLITS[source.split]:
        named = RowSource(source.env_type, source.key, source.location, source.columns, name)
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
        source: Where they are.
        most: The first so many rows; None for all.
        part: ``"train"`` or ``"val"`` of a file that is divided, "" for all.

    Raises:
        ConfigError: A row has no question or no answer, or there is none.
    """
    found = []
    for number, (text, answers) in enumerate(islice(load_rows(source), most), 1):
        answers = [answers] if isinstance(answers, str | int | float) else answers
        if not isinstance(text, str) or not isinstance(answers, list | tuple) or not answers:
            columns = " and ".join(map(repr, source.columns))
            raise source.error(f"row {number} needs a text and one or more answers in {columns}.")
        if not part or is_held_out(text) == (part == "val"):
            found.append(Question(text, tuple(map(str, answers))))
    if not found:
        raise source.error(f"there are no rows{f' for the split {part!r}' if part else ''}.")
    return tuple(found)
