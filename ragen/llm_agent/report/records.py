"""Trajectories of a file as a report shows them: what the rows of a rollout still know of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.llm_agent.backends.prompt import read_prompt, text_of
from ragen.llm_agent.report.episode import Episode


def episode_of(record: Mapping[str, Any]) -> Episode:
    """A record as an episode; where its environment lived, and what images it showed, is not in it.

    Args:
        record: See :mod:`~ragen.llm_agent.rollout.trajectories`.

    Raises:
        KeyError, TypeError, ValueError: It is not of a rollout of this package.
    """
    return Episode(
        state_of(record),
        record["seed"],
        "",
        None,
        record.get("error"),
        record.get("replies", ()),
        record.get("messages", ()),
    )


def state_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as the rollout cache that it was made of, as far as a page shows it.

    Args:
        record: See :mod:`~ragen.llm_agent.rollout.trajectories`.
    """
    kept = {name: record[name] for name in ("env_id", "group_id", "tag", "penalty", "metrics")}
    kept |= {name: record[name] for name in ("env_error", "parent", "turn") if name in record}
    if "messages" not in record:  # rows without texts
        played = zip(record["actions"], record["rewards"], strict=True)
        return kept | {"history": [{"state": "", "actions": a, "reward": r, "info": {}} for a, r in played]}
    chat = record["messages"]
    asked = [place for place, message in enumerate(chat) if message["role"] == "user"]
    replies = [text_of(message) for message in chat if message["role"] == "assistant"]
    turns = zip(asked, replies, record["actions"], record["rewards"], record["infos"], strict=False)
    history = [
        {
            "state": read_prompt(chat[: place + 1], 1).state,
            "llm_response": reply,
            "actions": actions,
            "reward": reward,
            "info": info,
        }
        for place, reply, actions, reward, info in turns
    ]
    last = [{"state": record["last_state"]}] if record.get("last_state") else []
    return kept | {"history": [*history, *last]}
