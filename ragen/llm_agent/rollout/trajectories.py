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

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.errors import RagenError
from ragen.files import json_text, replacing

if TYPE_CHECKING:
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy


def trajectories(proxy: LLMAgentProxy, mode: str, states: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records of finished episodes.

    Args:
        proxy: Played them.
        mode: ``"train"`` or ``"val"``.
        states: Their rollout caches.
    """
    es_manager, ctx_manager = proxy.prepare(val=mode == "val")
    for state in states:
        env_id, tag, history = state["env_id"], state["tag"], state["history"]
        entry, turns = es_manager.envs[env_id], [turn for turn in history if "actions" in turn]
        invalid, names = es_manager.invalid_turns(env_id), _names_of_actions(entry)
        facts, last = proxy.actor.replies.get(env_id, ()), history[-1] if history else {}
        record = {
            "env_id": env_id,
            "group_id": state["group_id"],
            "tag": tag,
            "seed": entry["status"].seed,
            "mode": mode,
            "messages": ctx_manager.transcript(dict(state)),
            "actions": [turn["actions"] for turn in turns],
            "rewards": [turn["reward"] for turn in turns],
            "infos": [turn["info"] for turn in turns],
            "invalid": [at in invalid for at in range(len(turns))],
            "raw_replies": [_reply(turn) for turn in turns],
            "penalty": state["penalty"],
            "success": bool(state["metrics"].get(f"{tag}/success", 0.0)),
            "metrics": state["metrics"],
        }
        if names:
            record["action_names"] = {str(key): name for key, name in names.items()}
        if "actions" not in last and isinstance(last.get("state"), str) and not last.get("images"):
            record["last_state"] = last["state"]
        if any(facts):
            record["replies"] = [dict(reply) for reply in facts]
        if env_id in proxy.failures:
            record["error"] = proxy.failures[env_id]
        record |= {name: state[name] for name in ("correct_answer", "env_error", "out_of_context") if name in state}
        yield record


def _names_of_actions(entry: Mapping[str, Any]) -> Mapping[Any, str] | None:
    """The names of actions by key of an environment's entry in ``EnvStateManager.envs``; None where it has none.

    If they are only known after a reset (bandit), they are read from the live environment.
    """
    names = getattr(entry["config"], "action_lookup", ())
    if names is None:
        with suppress(RagenError, AttributeError):  # it failed, or keeps no configuration
            names = entry["env"].config.action_lookup
    return names if isinstance(names, Mapping) else None


def _reply(turn: Mapping[str, Any]) -> str:
    """The model's own text in a played turn, without an opening tag that was put before it."""
    raw = turn.get("llm_raw_response", turn.get("llm_response", ""))
    return str(raw)[raw.index(">") + 1 if getattr(raw, "tag_added", False) else 0 :]


def write_jsonl(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write one record a line, in UTF-8, in place of a file; see :func:`~ragen.files.replacing`."""
    with replacing(path, durable=True) as file:
        file.writelines(f"{json_text(record)}\n".encode() for record in records)
