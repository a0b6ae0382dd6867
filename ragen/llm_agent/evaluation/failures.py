"""Why trajectories failed, grouped by kind: for reports and ``ragen diagnose``.

A failed trajectory has one kind, which follows from what ended it: the environment's failure, a missing reply, what was
wrong with its last reply, or its last permitted action or turn. Faults of earlier replies did not end it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ragen.errors import without_values
from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED, MISSING_REPLY
from ragen.llm_agent.evaluation.scanners import refusal_in
from ragen.llm_agent.report.contents import Episode

_OF_REPLIES = ("refused", "filtered", "empty", "cut_off")
_LONGEST = 160  # characters of an environment's or a server's message
_NAMED = 6  # tags
_HINTS = {
    "think>": " Where a model is not to think, set agent_proxy.enable_think=false.",
    "cut off": " actor_rollout_ref.rollout.response_length sets how long a reply may be.",
}
"""What to do about the most frequent fault of invalid replies."""


@dataclass
class FailureKind:
    """Failures of one kind.

    Attributes:
        what: A description of the failure.
        said: The environment's or server's message in the first example.
        numbers: Indices of its episodes.
        tags: How many of them each tag has.
    """

    what: str
    said: str
    numbers: list[int]
    tags: Counter[str]

    @property
    def named(self) -> str:
        """Its tags, the most frequent first, with their numbers if there are several."""
        most = self.tags.most_common(_NAMED)
        told = ", ".join(f"{tag} {count}" for tag, count in most) if len(self.tags) > 1 else most[0][0]
        return told + (f" and {len(self.tags) - _NAMED} more" if len(self.tags) > _NAMED else "")


def failures_of(episodes: Iterable[Episode], configuration: Mapping[str, Any] = {}) -> list[FailureKind]:
    """The kinds of failures, the most frequent first.

    Args:
        episodes: All episodes; those that succeeded are skipped.
        configuration: Flat keys; they decide the form of replies and the limits of turns and actions.
    """
    kinds: dict[tuple[str, str], FailureKind] = {}
    for number, episode in enumerate(episodes):
        if episode.outcome == JUDGED and episode.success:
            continue
        what, said = _kind_of(episode, configuration)
        of = what, _first_line(without_values(said))
        kind = kinds.setdefault(of, FailureKind(what, _first_line(said), [], Counter()))
        kind.numbers.append(number)
        kind.tags[episode.tag] += 1
    return sorted(kinds.values(), key=lambda kind: -len(kind.numbers))


def faults_of(episodes: Iterable[Episode], configuration: Mapping[str, Any] = {}) -> Counter[str]:
    """What was wrong with invalid replies, in all turns that were played.

    Replies without a valid action, and those that the manager penalized for another action beside valid ones.

    Args:
        episodes: All episodes.
        configuration: See :func:`failures_of`.
    """
    faults: Counter[str] = Counter()
    for episode in episodes:
        penalized = episode.state.get("invalid", ())
        for at, turn in enumerate(episode.turns[: -1 if episode.outcome == ENV_ERROR else None]):
            if not turn["actions"]:
                faults[_fault(episode, at, configuration).removeprefix("was ")] += 1
            elif any(penalized[at : at + 1]):
                faults["named an unknown action beside valid ones"] += 1
    return faults


def described(faults: Counter[str]) -> str:
    """The invalid replies by fault, with what to do about the most frequent one; "" without any."""
    if not faults:
        return ""
    told = ", ".join(f"{count:,} {fault}" for fault, count in faults.most_common())
    most = faults.most_common(1)[0][0]
    hint = next((what for part, what in _HINTS.items() if part in most), "")
    return f"Invalid replies, in all turns: {faults.total():,}; {told}.{hint}"


def told_invalid(episodes: Iterable[Episode]) -> str:
    """In how many turns environments called the last executed action invalid; "" if in none."""
    verdicts = [turn["info"].get("action_is_valid") for each in episodes for turn in each.turns if turn["actions"]]
    count = sum(verdict is not None and not verdict for verdict in verdicts)
    if not count:
        return ""
    return (
        f"In {count:,} of {len(verdicts):,} turns with an action, the environment called the last one invalid "
        "(action_is_valid), which costs no penalty."
    )


def _kind_of(episode: Episode, configuration: Mapping[str, Any]) -> tuple[str, str]:
    """A description of the failure, and the message."""
    if episode.outcome == ENV_ERROR:
        return "the environment failed", str(episode.state["env_error"])
    if episode.outcome == MISSING_REPLY:
        return "a prompt has no reply", str(episode.error)
    return _end_of_judged(episode, configuration), ""


def _end_of_judged(episode: Episode, configuration: Mapping[str, Any]) -> str:
    """What was wrong with the last reply, or what ended the episode."""
    turns, last = episode.turns, len(episode.turns) - 1
    if turns and (not turns[-1]["actions"] or _kind_in(episode, last)):
        fault = _fault(episode, last, configuration)
        is_only_last = any(turn["actions"] for turn in turns)
        return f"its last reply {fault}" if is_only_last else f"no reply had a valid action; the last one {fault}"
    most_turns = configuration.get("agent_proxy.max_turn")
    most_actions = configuration.get(f"custom_envs.{episode.tag}.max_actions_per_traj")
    if most_actions and sum(len(turn["actions"]) for turn in turns) >= most_actions:
        return "it used all its actions without reaching the goal"
    if most_turns and len(turns) >= most_turns:
        return "it used all its turns without reaching the goal"
    return "its environment ended the episode without success" if most_turns else "it did not reach the goal"


def _kind_in(episode: Episode, at: int) -> str:
    """What a server or its numbers say of a reply, such as ``cut off``; "" for nothing."""
    told = episode.replies[at : at + 1]
    return next((kind.replace("_", " ") for kind in _OF_REPLIES if any(facts.get(kind) for facts in told)), "")


def _fault(episode: Episode, at: int, configuration: Mapping[str, Any]) -> str:
    """Why a reply has no action that could be executed."""
    from ragen.llm_agent.prompting.replies import split_reply  # here, since it imports numpy, and help comes at once

    if kind := _kind_in(episode, at):
        return f"was {kind}"
    reply = episode.turns[at].get("llm_response")
    if refusal_in(episode.turns[at].get("llm_raw_response") or reply or ""):
        return "refused to play"
    thinks = configuration.get("agent_proxy.enable_think")
    if not reply or not isinstance(thinks, bool) or configuration.get("use_parallel_envs"):
        return "could not be parsed"
    parts = split_reply(reply, thinks)
    return f"lacked {parts}" if isinstance(parts, str) else "named no action of the environment"


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:_LONGEST] if lines else ""
