"""A finished rollout as plain records, one trajectory each, and as lines of JSON.

A record has ``env_id, group_id, tag, seed, mode``, the whole chat as ``messages`` in OpenAI form, per turn ``actions``,
``rewards``, ``infos``, ``invalid`` (whether the reply earned the format penalty) and ``raw_replies`` (what the model
wrote; the chat has what the parser made of it), and over the trajectory ``penalty``, ``success`` and ``metrics``.
``action_names`` has the names of actions by key, as texts, where the environment has such names. One that ended because
a prompt got no reply has ``error``, one whose environment failed ``env_error``, and one whose next prompt did
not fit the model's context ``out_of_context``. What the environment showed in the end
is ``last_state``, where that is text. Where the actor knows more of its replies, ``replies`` has a mapping for each,
see :func:`~ragen.llm_agent.backends.base.reply_facts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ragen.errors import RagenError
from ragen.files import json_text, replacing

RAW = ("messages", "infos", "raw_replies", "last_state", "correct_answer")
"""The keys of a record that hold texts of models and environments; ``actions`` may, too."""


def trajectory(
    state: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    seed: int | None,
    mode: str,
    invalid: Sequence[int],
    error: str | None = None,
    replies: Sequence[Mapping[str, Any]] | None = None,
    raw: bool = True,
    names: Mapping[Any, str] | None = None,
) -> dict[str, Any]:
    """The record of one environment's episode.

    Args:
        state: Its rollout cache, as ``EnvStateManager.get_rollout_states()`` gives it.
        messages: Its whole chat.
        seed: What its episode was reset with.
        mode: ``"train"`` or ``"val"``.
        invalid: The turns, from 0, whose reply earned the format penalty.
        error: Why its trajectory ended early; None if it did not.
        replies: What there is to know of each of its replies; None where that is not known.
        raw: Whether to keep texts; without, those of :data:`RAW` are left out, and an action that is a text is None.
        names: The names of its actions by key; None where they have none.
    """
    turns = played_turns(state)
    record = {
        "env_id": state["env_id"],
        "group_id": state["group_id"],
        "tag": state["tag"],
        "seed": seed,
        "mode": mode,
        "messages": list(messages),
        "actions": [turn["actions"] for turn in turns],
        "rewards": [turn["reward"] for turn in turns],
        "infos": [turn["info"] for turn in turns],
        "invalid": [at in invalid for at in range(len(turns))],
        "raw_replies": [tag_and_reply(turn)[1] for turn in turns],
        "penalty": state["penalty"],
        "success": bool(state["metrics"].get(f"{state['tag']}/success", 0.0)),
        "metrics": state["metrics"],
    }
    if names:
        record["action_names"] = {str(key): name for key, name in names.items()}
    last = state["history"][-1] if state["history"] else {}
    if "actions" not in last and isinstance(last.get("state"), str) and not last.get("images"):
        record["last_state"] = last["state"]
    if "correct_answer" in state:
        record["correct_answer"] = state["correct_answer"]
    if replies is not None:
        record["replies"] = [dict(reply) for reply in replies]
    if error is not None:
        record["error"] = error
    record |= {name: state[name] for name in ("env_error", "out_of_context") if name in state}
    return record if raw else _without_texts(record)


def _without_texts(record: Mapping[str, Any]) -> dict[str, Any]:
    actions = [[None if isinstance(each, str) else each for each in executed] for executed in record["actions"]]
    return {name: value for name, value in record.items() if name not in RAW} | {"actions": actions}


def names_of_actions(entry: Mapping[str, Any]) -> Mapping[Any, str] | None:
    """The names of actions by key of an environment's entry in ``EnvStateManager.envs``; None where it has none.

    Where a reset decides them, as the bandit's, the environment itself is asked.
    """
    names = getattr(entry["config"], "action_lookup", ())
    if names is None:
        with suppress(RagenError, AttributeError):  # it failed, or keeps no configuration
            names = entry["env"].config.action_lookup
    return names if isinstance(names, Mapping) else None


def tag_and_reply(turn: Mapping[str, Any]) -> tuple[str, str]:
    """The opening tag that was put before the reply of a played turn, if any, and what the model wrote."""
    raw = turn.get("llm_raw_response", turn.get("llm_response", ""))
    begins = raw.index(">") + 1 if getattr(raw, "tag_added", False) else 0
    return str(raw)[:begins], str(raw)[begins:]


def played_turns(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a rollout cache's history that were played, without the open last one."""
    return [turn for turn in state["history"] if "actions" in turn]


def write_jsonl(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write one record a line, in UTF-8, in place of a file; see :func:`~ragen.files.replacing`."""
    with replacing(path, durable=True) as file:
        for record in records:
            file.write(line_of(record).encode())


def line_of(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON; see :func:`~ragen.files.json_text`."""
    return json_text(record) + "\n"
