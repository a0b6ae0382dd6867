"""Parsing of actions, comparison of answers and wording of replies, in this package's style or RAGEN 2026's.

In both styles an episode consists of searches and one answer; a :class:`Style` contains the differences.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from ragen.env.search.world import Hit, Question

READ_LIMIT = 10_000
"""Maximum length of an action, in characters."""

_ACTION = re.compile(r"(search|answer|finish)\s*\[(.*)\]", re.S | re.I)
_TAG = re.compile(r"<(search|answer)>(.*?)</\1>", re.S | re.I)
_HINT = "search[...] or answer[...]"
_RAGEN_CHOICES = "Available actions: search[<query>], finish[<answer>]"
_RAGEN_LONGEST = 800  # characters of one document


def read_action(action: str) -> tuple[str, str]:
    """Parse an action into its kind and its text.

    Args:
        action: ``search[...]``, ``answer[...]``, RAGEN's ``finish[...]``, or Search-R1's ``<search>`` or ``<answer>``
            (the last tag counts). Any other text is an answer, since a rollout strips the ``<answer>`` tag.

    Returns:
        ``"search"``, ``"answer"`` or ``"none"``, and the text.
    """
    text = action.strip()
    if not text or len(text) > READ_LIMIT:
        return "none", ""
    if found := _ACTION.fullmatch(text):
        return ("search" if found[1].lower() == "search" else "answer"), found[2].strip()
    if tags := _TAG.findall(text):
        return tags[-1][0].lower(), tags[-1][1].strip()
    return "answer", text


# Comparing answers


class Verdict(NamedTuple):
    """The score of an answer, with RAGEN 2026's names.

    Attributes:
        extracted_answer: The answer.
        ground_truths: The correct answers.
        best_match: The most similar correct answer; "" if it shares no word with any.
        f1_score: The F1 score of their words; 1 if they are equal.
        precision: The fraction of the answer's words that are in ``best_match``.
        recall: The fraction of the words of ``best_match`` that are in the answer.
        exact_match: Whether they are equal.
        evaluation_method: ``"exact_match"``, ``"f1_score"``, or None if there is no word in common.
        f1_threshold: The lowest F1 score of a correct answer.
        reward: The reward.
        success: Whether the answer counts as correct.
    """

    extracted_answer: str
    ground_truths: list[str]
    best_match: str
    f1_score: float
    precision: float
    recall: float
    exact_match: bool
    evaluation_method: str | None
    f1_threshold: float
    reward: float
    success: bool


def normalized(text: str) -> str:
    """An answer normalized as in the evaluations of SQuAD and HotpotQA: no case, punctuation or articles."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def f1_score(answer: str, right: str) -> tuple[float, float, float]:
    """F1, precision and recall of an answer's words; "yes", "no" and "noanswer" get no partial credit."""
    given, wanted = normalized(answer), normalized(right)
    if given != wanted and {given, wanted} & {"yes", "no", "noanswer"}:
        return 0.0, 0.0, 0.0
    shared = sum((Counter(given.split()) & Counter(wanted.split())).values())
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / len(given.split()), shared / len(wanted.split())
    return 2 * precision * recall / (precision + recall), precision, recall


def judge(answer: str, rights: Sequence[str], rewards: tuple[float, float], threshold: float, partial: bool) -> Verdict:
    """Compare an answer with the correct ones.

    Args:
        answer: The answer.
        rights: The correct answers.
        rewards: The rewards of a correct and of a wrong answer; the first is multiplied by the F1 score.
        threshold: The lowest F1 score of a correct answer.
        partial: Whether that suffices; otherwise only equal answers are correct.
    """
    best, scores, exact = "", (0.0, 0.0, 0.0), False
    for right in map(str.strip, rights):
        if normalized(answer) == normalized(right):
            best, scores, exact = right, (1.0, 1.0, 1.0), True
            break
        found = f1_score(answer, right)
        if found > scores and found[0] > scores[0]:
            best, scores = right, found
    success = exact or (partial and scores[0] > 0 and scores[0] >= threshold)
    reward = float(rewards[0] * scores[0] if success else rewards[1])
    method = "exact_match" if exact else "f1_score" if scores[0] else None
    return Verdict(answer, list(rights), best, *scores, exact, method, threshold, reward, success)


# Styles


class Style:
    """This package's style: three notations for actions, short replies, only numbers in infos.

    Class attributes:
        by_splits: Whether questions are divided by split; otherwise the seed indexes all of them.
        unanswered: Whether an episode without an answer earns the reward of a wrong one; otherwise 0.
        answer: The format of an answer action.
    """

    by_splits, unanswered, answer = True, True, "answer[{}]"

    def opening(self, question: Question, searches_left: int | None) -> str:
        """The first observation."""
        return f"Question: {question.text}\n{self._choices(searches_left)}"

    def _choices(self, searches_left: int | None) -> str:
        if searches_left is None:
            return f"Say {_HINT}."
        return f"Searches left: {searches_left}. Say {_HINT if searches_left else 'answer[...]'}."

    def read(self, action: str) -> tuple[str, str]:
        """Parse an action into its kind (``"search"``, ``"answer"``, ``"free"`` or ``"none"``) and its text."""
        return read_action(action)

    def accepts(self, kind: str, words: str, searches_left: int | None) -> bool:
        """Whether an action is valid; otherwise it is rejected."""
        return bool(words) and (kind != "search" or searches_left != 0)

    def found(self, query: str, hits: Sequence[Hit], most: int | None) -> str:
        """The results of a search, in at most ``most`` characters."""
        if not hits:
            return "Nothing was found."
        lines = [
            f"[{number}] {title}: {text}" if title else f"[{number}] {text}"
            for number, ((title, text), _, _) in enumerate(hits, 1)
        ]
        return _cut("\n".join(lines), most, " ...")

    def refused(self, kind: str, words: str) -> str:
        """The reply to a rejected action."""
        if kind == "search":
            return "There are no searches left." if words else "The query is empty."
        return "The answer is empty." if kind == "answer" else "This is not an action."

    def next(self, shown: str, kind: str, done: bool, searches_left: int | None) -> str:
        """The observation after a search or a rejected action."""
        return f"{shown}\n{'That was the last action; there is no answer.' if done else self._choices(searches_left)}"

    def answered(self, kind: str, verdict: Verdict) -> str:
        """The last observation."""
        if verdict.success and not verdict.exact_match:
            return "The answer is partly right."
        return "The answer is right." if verdict.exact_match else "The answer is wrong."

    def info(self, kind: str, words: str, effective: bool, searches: int, verdict: Verdict | None) -> dict[str, Any]:
        """The info of a turn."""
        return {
            "action_is_valid": effective,
            "action_is_effective": effective,
            "success": verdict is not None and verdict.success,
            "searches": searches,
            "exact_match": verdict is not None and verdict.exact_match,
            "f1": 0.0 if verdict is None else verdict.f1_score,
        }


class RagenStyle(Style):
    """RAGEN 2026's style: exactly ``search[...]`` and ``finish[...]``; any other text contains an answer."""

    by_splits, unanswered, answer = False, False, "finish[{}]"

    def opening(self, question: Question, searches_left: int | None) -> str:
        """See :class:`Style`."""
        return f"Question: {question.text}\n{_RAGEN_CHOICES}"

    def read(self, action: str) -> tuple[str, str]:
        """See :class:`Style`."""
        text = action.strip()
        for verb, kind in (("search", "search"), ("finish", "answer")):
            if text.startswith(f"{verb}[") and text.endswith("]"):
                return kind, text[len(verb) + 1 : -1]
        return ("free", text) if text else ("none", "")

    def accepts(self, kind: str, words: str, searches_left: int | None) -> bool:
        """See :class:`Style`; an empty query is valid."""
        return kind != "none"

    def found(self, query: str, hits: Sequence[Hit], most: int | None) -> str:
        """See :class:`Style`; a document has at most 800 characters."""
        if not hits:
            return f"Search results for '{query}':\nNo relevant documents found for the query."
        longest = None if most is None else _RAGEN_LONGEST
        documents = []
        for number, ((title, text), name, score) in enumerate(hits, 1):
            content = _cut(f"{title}\n{text}" if title else text, longest, "...")
            documents.append(f"[Document {number}] (ID: {name}, Score: {score:.3f})\n{content}")
        return f"Search results for '{query}':\n{_cut(f'{chr(10)}{chr(10)}'.join(documents), most, '...')}"

    def refused(self, kind: str, words: str) -> str:
        """See :class:`Style`."""
        return "Invalid action. Use search[<query>] to search or finish[<answer>] to answer."

    def next(self, shown: str, kind: str, done: bool, searches_left: int | None) -> str:
        """See :class:`Style`."""
        if kind != "search":
            return f"{shown}\n{_RAGEN_CHOICES}"
        return (
            f"{shown}\n\n{'Maximum search steps reached. Episode ended without an answer.' if done else _RAGEN_CHOICES}"
        )

    def answered(self, kind: str, verdict: Verdict) -> str:
        """See :class:`Style`."""
        way = " (extracted)" if kind == "free" else ""
        return f"Your answer{way}: {verdict.extracted_answer}. Reward: {verdict.reward:.2f}"

    def info(self, kind: str, words: str, effective: bool, searches: int, verdict: Verdict | None) -> dict[str, Any]:
        """See :class:`Style`."""
        told: dict[str, Any] = {
            "action_is_effective": effective,
            "action_is_valid": effective and kind != "free",
            "success": verdict is not None and verdict.success,
            "action_type": {"search": "search", "answer": "finish", "free": "fallback"}.get(kind, "invalid"),
        }
        if kind == "search":
            told["query"] = words
        if verdict is None:
            return told
        if kind == "free":
            told |= {"raw_action": words, "extracted_answer": verdict.extracted_answer}
        else:
            told["answer"] = words
        told["reward_metadata"] = {name: value for name, value in verdict._asdict().items() if name != "success"}
        return told


STYLES: dict[str, Style] = {"own": Style(), "ragen": RagenStyle()}


def extracted(text: str) -> str:
    r"""Extract the answer from a free text, as RAGEN 2026 does.

    The first match of: the content of ``\boxed{}``; bold or italic text; the text after "answer is" or after
    "therefore", "thus", "so" or "hence"; the first sentence of more than five characters; the first 100 characters.
    """
    text = " ".join(re.sub(r"<think>.*?</think>", "", text.strip(), flags=re.S).split())
    if boxed := re.search(r"\\boxed\{([^}]+)\}", text):
        return boxed[1].strip()
    for marks in (r"\*\*([^*]+)\*\*", r"\*([^*]+)\*"):
        for marked in map(str.strip, re.findall(marks, text)):
            if len(marked) > 2 and re.search(r"\w", marked):
                return marked
    for before in (r"(?:the\s+)?(?:correct\s+)?answer\s+is\s*:?", r"(?:therefore|thus|so|hence)\s*,?"):
        if concluded := re.search(rf"{before}\s*([^.!?]+)", text, re.I):
            answer = re.sub(r"^\W+|\W+$", "", concluded[1].strip())
            if len(answer) > 3:
                return answer
    sentences = (part.strip() for part in re.split(r"[.!?]+", text) if len(part.strip()) > 5)
    return next(sentences, text[:100].strip())


def _cut(text: str, most: int | None, mark: str) -> str:
    return text if most is None or len(text) <= most else f"{text[:most]}{mark}"
