"""What became of an episode, and what its replies were like, read from its record.

An episode says something of the model, or it does not: its environment failed, or a prompt got no reply. An
environment's failure comes first, since an episode without an environment has nothing more to ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ragen.errors import counted
from ragen.llm_agent.backends.base import LEFT_OUT
from ragen.validity import is_valid

JUDGED, ENV_ERROR, MISSING_REPLY = "judged", "env error", "missing reply"
KINDS = ("cut_off", "filtered", "refused", "empty", "tool_calls")
"""What may be wrong with a reply; a record's reply has the name where it is so."""


def outcome(record: Mapping[str, Any]) -> str:
    """``JUDGED``, ``ENV_ERROR`` or ``MISSING_REPLY``."""
    if not is_valid(record):
        return ENV_ERROR
    return MISSING_REPLY if "error" in record else JUDGED


def count_replies(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How many replies there were and what they were like; nothing where the actor does not tell.

    Returns:
        ``count``, the number of each of ``KINDS``, and ``finish_reasons``, which counts them by the server's word;
        ``"unknown"`` is where a server said none.
    """
    replies = [reply for record in records for reply in record.get("replies", ())]
    if not any(reply.keys() - {LEFT_OUT} for reply in replies):
        return {}
    reasons = Counter(str(reply.get("finish_reason") or "unknown") for reply in replies)
    kinds = {kind: sum(bool(reply.get(kind)) for reply in replies) for kind in KINDS}
    return {"count": len(replies), **kinds, "finish_reasons": dict(sorted(reasons.items()))}


def kinds_of(replies: Iterable[Mapping[str, Any]]) -> list[str]:
    """Which of ``KINDS`` some of these replies are, in the order of ``KINDS``."""
    found = {kind for reply in replies for kind in KINDS if reply.get(kind)}
    return [kind for kind in KINDS if kind in found]


def replies_line(counts: Mapping[str, Any]) -> str:
    """The counts as words, such as ``96 replies: 3 cut off, 1 refused; finish reasons: length 3, stop 93``."""
    wrong = [f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in KINDS if counts[kind]]
    reasons = [f"{reason} {count:,}" for reason, count in counts["finish_reasons"].items()]
    told = counted(counts["count"], "reply", "replies")
    faults = ", ".join(wrong) or "none cut off, empty or refused by the server"
    return f"{told}: {faults}; finish reasons: {', '.join(reasons)}"
