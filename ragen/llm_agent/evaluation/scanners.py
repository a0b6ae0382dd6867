"""Scanners look through the trajectories of a run for what makes its results mean less than they seem to.

A scanner is a function that takes the records of a run (see :mod:`~ragen.llm_agent.rollout.trajectories`) and yields a
:class:`Finding` for each place that it objects to. :data:`SCANNERS` has those that run after every rollout and in
``ragen diagnose``. One of your own is named by its place, ``PACKAGE.MODULE:FUNCTION``: in the configuration key
``scanners`` for rollouts and evaluations, with ``--scanner`` for ``ragen diagnose``. Records without texts
(``raw: false``) are looked through as far as they go.

None of them changes a result or an exit code, and neither does one that fails: a finding is a trajectory to open and
read, and a failure is a sentence.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from ragen.commands import counted
from ragen.errors import around_difference, described_with_place, in_short
from ragen.llm_agent.backends.base import LEFT_OUT
from ragen.llm_agent.backends.prompt import state_of_message, text_of
from ragen.llm_agent.config.context import MAX_MODEL_LEN
from ragen.llm_agent.evaluation.replies import JUDGED, outcome
from ragen.settings import function_at

Record: TypeAlias = Mapping[str, Any]

SAME_STATES = 4
"""Turns with an executed action and the same state, from which on an environment is said to loop."""
REPEATS = 4
"""Copies in a row of the same words from which on a text repeats itself."""
MANY = 20
"""Rewards, or successes, of a tag that are needed to say which rewards are usual."""
_LONGEST = 160  # characters of an excerpt
_LEAST_REPEATED = 30  # letters of all copies
_LONGEST_PERIOD = 60  # words
_REFUSALS = re.compile(
    r"(?:\bI(?: a|')m (?:sorry|afraid),? (?:but )?I (?:can(?:no|')t|am (?:unable|not able)|won't)"
    r"|\bI (?:can(?:no|')t|won't|am unable to|am not able to|must decline to) "
    r"(?:assist|help|comply|participate|provide)"
    r"|\bas an AI(?: language)? model\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Finding:
    """A place in a run to look at.

    Attributes:
        env_id: Of the trajectory.
        why: What was found, in a few words.
        turn: Counted from 1, as in a chat and a report; None for the whole trajectory.
        excerpt: The text that it is about, if any.
    """

    env_id: int
    why: str
    turn: int | None = None
    excerpt: str = ""


Scanner: TypeAlias = Callable[[Sequence[Record]], Iterable[Finding]]


def refusal_in(reply: str) -> re.Match[str] | None:
    """Where a reply refuses to play, in words."""
    return _REFUSALS.search(reply.replace("’", "'"))


def refusals(records: Sequence[Record]) -> Iterator[Finding]:
    """Replies in which the model, its provider or a filter refuses to play."""
    for record in records:
        told = record.get("replies", ())
        for turn, reply in enumerate(_replies(record), 1):
            if found := refusal_in(reply):
                yield Finding(record["env_id"], "the reply refuses", turn, _excerpt(reply, found.start()))
        for turn, facts in enumerate(told, 1):
            if facts.get("refused") or facts.get("filtered"):
                yield Finding(record["env_id"], "refused or filtered by the server", turn)


def broken_environments(records: Sequence[Record]) -> Iterator[Finding]:
    """Environments that failed, or show one state again and again while one action is said to have an effect.

    A tag whose state never changes in any episode, as a bandit's, has no state to stand still. Several actions of a
    turn may lead back to a state, and what answers a text, such as a search, may answer the same text alike.
    """
    changing = {record["tag"] for record in records if len(set(states_shown(record))) > 1}
    for record in records:
        if "env_error" in record:
            yield Finding(record["env_id"], "the environment failed", excerpt=_excerpt(str(record["env_error"])))
        run, before = 0, None
        for turn, (state, actions) in enumerate(zip(states_shown(record), record["actions"], strict=False), 1):
            is_move = len(actions) == 1 and not isinstance(actions[0], str)
            acted = is_move and _info(record, turn - 1).get("action_is_effective") is True
            now = (state, json.dumps(actions, default=str)) if acted else None
            run = run + 1 if acted and now == before else int(acted)
            before = now
            if run == SAME_STATES and record["tag"] in changing:
                why = f"the same state {SAME_STATES} times, though the same action was said to have an effect"
                yield Finding(record["env_id"], why, turn, _excerpt(state))


def cut_off_replies(records: Sequence[Record]) -> Iterator[Finding]:
    """Replies that ended because they reached the token limit."""
    for record in records:
        for turn, facts in enumerate(record.get("replies", ()), 1):
            if facts.get("cut_off"):
                yield Finding(record["env_id"], "the reply was cut off", turn, _tail(_nth(_replies(record), turn)))


def shortened_prompts(records: Sequence[Record]) -> Iterator[Finding]:
    """Prompts that had no room for the oldest turns, which the model therefore did not see."""
    for record in records:
        counts = [facts.get(LEFT_OUT, 0) for facts in record.get("replies", ())]
        if any(counts):
            first = next(turn for turn, count in enumerate(counts, 1) if count)
            why = f"the prompt leaves out the oldest turns, {max(counts)} in the end: raise {MAX_MODEL_LEN}"
            yield Finding(record["env_id"], why, first)


def repeated_text(records: Sequence[Record]) -> Iterator[Finding]:
    """Replies that say the same words again and again; a list of the same short action is none."""
    for record in records:
        for turn, reply in enumerate(_replies(record), 1):
            thought = reply.partition("<answer>")[0]
            again, copies = _repeated(thought.split())
            if copies:
                yield Finding(record["env_id"], f"the same words {copies} times in a row", turn, _excerpt(again))


def never_valid(records: Sequence[Record]) -> Iterator[Finding]:
    """Episodes of at least two turns in none of which an action was executed that the environment called valid."""
    for record in records:
        turns = range(len(record["actions"]))
        if len(turns) < 2 or outcome(record) != JUDGED:
            continue
        if not any(record["actions"][at] and _info(record, at).get("action_is_valid", True) for at in turns):
            why = f"in none of {len(turns)} turns was an action executed that the environment called valid"
            yield Finding(record["env_id"], why, excerpt=_excerpt(_nth(_replies(record), 1)))


def dropped_actions(records: Sequence[Record]) -> Iterator[Finding]:
    """Replies of which only the first actions were played, since a turn may not have as many."""
    for record in records:
        chat = [text_of(each) for each in record.get("messages", ()) if each["role"] == "assistant"]
        for turn, (reply, shown) in enumerate(zip(_replies(record), chat, strict=False), 1):
            wrote, kept = (
                "".join(text.rpartition("<answer>")[2].partition("</answer>")[0].split()) for text in (reply, shown)
            )
            if kept and wrote != kept and wrote.startswith(kept):
                why = "only the first actions were played: see agent_proxy.max_actions_per_turn and action_sep"
                yield Finding(record["env_id"], why, turn, _tail(reply))


def unequal_episodes(records: Sequence[Record]) -> Iterator[Finding]:
    """Episodes that show another state than one of the same seed after the same actions: not reproducible."""
    known: dict[tuple[str, int, str], str] = {}
    for record in records:
        played = ""
        for turn, state in enumerate(states_shown(record), 1):
            if (other := known.setdefault((record["tag"], record["seed"], played), state)) != state:
                why = "another state than in an episode of the same seed with the same actions"
                yield Finding(record["env_id"], why, turn, around_difference(state, other, _LONGEST)[0])
                break
            played += json.dumps(record["actions"][turn - 1 : turn], default=str)


def odd_rewards(records: Sequence[Record]) -> Iterator[Finding]:
    """Rewards that are no finite numbers, or far outside of what the tag usually gives for a turn.

    Far is ten times the distance from the median within which 95 % of the tag's rewards lie, and at least 10. The last
    turns of successes have a range of their own: the goal's reward is large, and where success is rare it is unusual.
    Fewer than ``MANY`` rewards have no usual range.
    """
    usual: dict[tuple[str, bool], list[float]] = {}
    for record in records:
        for turn, reward in enumerate(record["rewards"], 1):
            if _is_finite(reward):
                usual.setdefault((record["tag"], _wins(record, turn)), []).append(reward)
    ranges = {kind: _range(values) for kind, values in usual.items() if len(values) >= MANY}
    for record in records:
        for turn, reward in enumerate(record["rewards"], 1):
            low, high = ranges.get((record["tag"], _wins(record, turn)), (-math.inf, math.inf))
            if not _is_finite(reward):
                yield Finding(record["env_id"], f"reward {reward!r} is no finite number", turn)
            elif not low <= reward <= high:
                why = f"reward {reward:.6g}; those of {record['tag']} lie between {low:.6g} and {high:.6g}"
                yield Finding(record["env_id"], why, turn)


def suspicious_successes(records: Sequence[Record]) -> Iterator[Finding]:
    """Successes without the goal, and full rewards without success.

    A success counts as one without the goal where nothing was ever executed, or where no turn's ``success`` is true
    though turns have one. A reward is one without the goal's state where an episode that failed got more than each of
    at least ``MANY`` successful ones of its tag.
    """
    totals: dict[str, list[float]] = {}
    for record in records:
        if record["success"] and outcome(record) == JUDGED and _is_finite(_total(record)):
            totals.setdefault(record["tag"], []).append(_total(record))
    best = {tag: max(values) for tag, values in totals.items() if len(values) >= MANY}
    for record in records:
        told = [info["success"] for info in record.get("infos", ()) if "success" in info]
        env_id, total = record["env_id"], _total(record)
        if record["success"] and not any(record["actions"]):
            yield Finding(env_id, "a success, and no action was ever executed")
        elif record["success"] and told and not any(told):
            yield Finding(env_id, "a success, and no turn's info has success")
        elif not record["success"] and total > best.get(record["tag"], math.inf):
            why = f"no success, and reward {total:.6g}; the best success has {best[record['tag']]:.6g}"
            yield Finding(env_id, why)


SCANNERS: dict[str, Scanner] = {
    "refusals": refusals,
    "broken environments": broken_environments,
    "cut off": cut_off_replies,
    "shortened prompts": shortened_prompts,
    "repeated text": repeated_text,
    "never valid": never_valid,
    "dropped actions": dropped_actions,
    "not reproducible": unequal_episodes,
    "odd rewards": odd_rewards,
    "suspicious successes": suspicious_successes,
}
"""By name, in the order in which they are printed."""
_OWN = frozenset(SCANNERS.values())
_READ_TEXTS = (
    "refusals",
    "broken environments",
    "repeated text",
    "never valid",
    "dropped actions",
    "not reproducible",
    "suspicious successes",
)
"""The scanners that see less in rows of ``raw: false``, which have neither chats nor infos."""


@dataclass(frozen=True)
class Scan:
    """What scanners found in a run.

    Attributes:
        found: Name to findings, of every scanner that worked, also of those that found nothing.
        failed: A sentence for each scanner that did not work.
        blind: The scanners that read texts, if the run has none.
    """

    found: Mapping[str, Sequence[Finding]]
    failed: Sequence[str] = ()
    blind: Sequence[str] = ()

    def lines(self, run: str = "RUN") -> list[str]:
        """All of it in a line, and one more for each scanner that did not work.

        Args:
            run: The folder that the line names for ``ragen diagnose``.
        """
        counts = {name: len({each.env_id for each in findings}) for name, findings in self.found.items() if findings}
        words = ", ".join(f"{name} in {counted(count, 'trajectory', 'trajectories')}" for name, count in counts.items())
        nothing = f"scanners: none of {len(self.found)} found anything"
        told = f"scanners: {words}; ragen diagnose {run} shows them" if counts else nothing
        blind = f"; without texts, these find less: {', '.join(self.blind)}" if self.blind else ""
        return [told + blind, *self.failed]

    @property
    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """The findings as plain values."""
        return {name: [asdict(each) for each in findings] for name, findings in self.found.items()}


def scan(records: Sequence[Record], scanners: Mapping[str, Scanner] | None = None) -> Scan:
    """Run scanners over a run; one that raises, or yields something else than findings, costs its own findings alone.

    Args:
        records: Of trajectories.
        scanners: Name to function; None runs those of :data:`SCANNERS`. Any other function gets a copy of the records,
            so that one that changes them changes neither the run nor what the next one sees.
    """
    found: dict[str, list[Finding]] = {}
    failed: list[str] = []
    for name, scanner in (SCANNERS if scanners is None else scanners).items():
        try:
            findings = list(scanner(records if scanner in _OWN else pickle.loads(pickle.dumps(records))))
            if wrong := [each for each in findings if not isinstance(each, Finding)]:
                raise TypeError(f"it yields {in_short(wrong[0])}; expected ragen's Finding")
            found[name] = findings
        except Exception as error:  # whatever a plug-in does, and a bug of our own
            what = described_with_place(error)
            failed.append(f"scanner {name!r} failed, so its findings are missing: {what}")
    has_texts = all("messages" in record for record in records)
    return Scan(found, failed, () if has_texts else [name for name in _READ_TEXTS if name in found])


def scanners_of(names: Iterable[str], where: str) -> dict[str, Scanner]:
    """The scanners of :data:`SCANNERS`, and further ones.

    Args:
        names: Of the further ones, ``package.module:function``.
        where: What names them, for messages.

    Raises:
        ConfigError: There is none of that name.
    """
    return SCANNERS | {name: function_at(name, where) for name in names}


def _replies(record: Record) -> Sequence[str]:
    """The replies as the model wrote them; as the chat shows them in rows of earlier versions."""
    return record.get("raw_replies") or [
        text_of(each) for each in record.get("messages", ()) if each["role"] == "assistant"
    ]


def states_shown(record: Record) -> list[str]:
    """The states of a record's turns, as its chat has them; none where it has no texts."""
    return [state_of_message(message) for message in record.get("messages", ()) if message["role"] == "user"]


def _info(record: Record, turn: int) -> Mapping[str, Any]:
    infos = record.get("infos", ())
    return infos[turn] if turn < len(infos) and isinstance(infos[turn], Mapping) else {}


def _nth(texts: Sequence[str], turn: int) -> str:
    return texts[turn - 1] if turn <= len(texts) else ""


def _wins(record: Record, turn: int) -> bool:
    return bool(record["success"]) and turn == len(record["rewards"])


def _total(record: Record) -> float:
    values = record["rewards"]
    return float(sum(values)) if all(map(_is_finite, values)) else math.nan


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _range(values: Sequence[float]) -> tuple[float, float]:
    middle = statistics.median(values)
    distances = sorted(abs(value - middle) for value in values)
    far = max(10.0, 10.0 * distances[int(0.95 * (len(distances) - 1))])
    return middle - far, middle + far


def _repeated(words: Sequence[str]) -> tuple[str, int]:
    """The first words that stand at least ``REPEATS`` times in a row, all copies of them, and how many; else 0.

    Boards and rows of numbers are no words: most of what is repeated has to be letters.
    """
    import numpy as np  # here, since the help of commands that know scanners is to come at once

    known: dict[str, int] = {}
    ids = np.array([known.setdefault(word, len(known)) for word in words])
    for period in range(1, min(_LONGEST_PERIOD, len(words) // REPEATS) + 1):
        same = np.concatenate([[False], ids[period:] == ids[:-period], [False]])
        starts, ends = np.flatnonzero(same[1:] & ~same[:-1]), np.flatnonzero(~same[1:] & same[:-1])
        for start, end in zip(starts, ends, strict=True):
            if end - start >= (REPEATS - 1) * period:
                whole = " ".join(words[int(start) : int(end) + period])
                if sum(map(str.isalpha, whole)) >= max(_LEAST_REPEATED, len(whole) // 2):
                    return whole, int(end - start) // period + 1
    return "", 0


def _excerpt(text: str, start: int = 0) -> str:
    words = " ".join(text[max(0, start - 20) :].split())
    return words if len(words) <= _LONGEST else words[: _LONGEST - 2] + ".."


def _tail(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST else ".." + words[2 - _LONGEST :]
