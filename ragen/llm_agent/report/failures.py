"""Why trajectories did not reach their goals: by kind, with one example of each.

An episode has one kind, the first that is so: its environment failed, a prompt got no reply, the server tells something
of a reply (refused, filtered, empty, cut off), replies could not be read, actions were invalid or used
up, it ended elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED, MISSING_REPLY
from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.report.text import shown

_OF_REPLIES = ("refused", "filtered", "empty", "cut_off")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?", re.I)
_LONGEST = 160  # characters of what an environment or a server says
_NAMED = 6  # tags


@dataclass
class FailureKind:
    """Failures of one kind.

    Attributes:
        what: What failed, in words.
        said: What an environment or a server said of it, of the example.
        numbers: The places of its episodes.
        tags: Their tags, each once.
    """

    what: str
    said: str
    numbers: list[int]
    tags: list[str]


def failures_of(episodes: Iterable[Episode]) -> list[FailureKind]:
    """The kinds of failures, the most frequent first."""
    kinds: dict[tuple[str, str], FailureKind] = {}
    for number, episode in enumerate(episodes):
        if episode.outcome == JUDGED and episode.success:
            continue
        what, said = _kind_of(episode)
        kind = kinds.setdefault((what, _NUMBER.sub("N", said)), FailureKind(what, said, [], []))
        kind.numbers.append(number)
        if episode.tag not in kind.tags:
            kind.tags.append(episode.tag)
    return sorted(kinds.values(), key=lambda kind: -len(kind.numbers))


def _kind_of(episode: Episode) -> tuple[str, str]:
    """What failed, and what was said of it."""
    if episode.outcome == ENV_ERROR:
        return "the environment failed", _first_line(episode.state["env_error"])
    if episode.outcome == MISSING_REPLY:
        return "a prompt got no reply", _first_line(episode.error)
    return next(_kinds_of_judged(episode)), ""


def _kinds_of_judged(episode: Episode) -> Iterator[str]:
    found = episode.kinds
    for kind in _OF_REPLIES:
        if kind in found:
            yield f"some reply was {kind.replace('_', ' ')}"
    turns = episode.turns
    nothing = sum(not turn["actions"] for turn in turns)
    if nothing and nothing == len(turns):
        yield "no reply could be read"
    if nothing:
        yield "some replies could not be read"
    if turns and episode.state["penalty"]:
        yield "some actions were invalid"
    last = episode.state["history"][-1] if episode.state["history"] else {}
    if "actions" not in last and last.get("actions_left", 1) <= 0:
        yield "its actions were used up"
    yield "it did not reach the goal"


def _first_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[0][:_LONGEST] if lines else ""


def failure_rows(kinds: Sequence[FailureKind]) -> str:
    """The rows of a table of kinds, heads first; each has a button that shows its example."""
    if not kinds:
        return ""
    rows = "".join(
        f'<tr><td class="name">{shown(kind.what, 200)} '
        f'<button type="button" data-show="{kind.numbers[0]}">example</button>{_told(kind)}</td>'
        f'<td class="number">{len(kind.numbers)}</td><td class="name">{shown(_tags(kind), 300)}</td></tr>'
        for kind in kinds
    )
    return f'<tr><th>what failed</th><th class="number">episodes</th><th>tags</th></tr>{rows}'


def _told(kind: FailureKind) -> str:
    return f'<br><span class="soft">{shown(kind.said, 300)}</span>' if kind.said else ""


def _tags(kind: FailureKind) -> str:
    return ", ".join(kind.tags[:_NAMED]) + (f" and {len(kind.tags) - _NAMED} more" if len(kind.tags) > _NAMED else "")
