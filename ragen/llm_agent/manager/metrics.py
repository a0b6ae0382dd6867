"""What an episode's metrics are: ``<tag>/success``, ``<tag>/num_actions``, infos, ``pass@k`` and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragen.env.base import BaseEnv
from ragen.errors import RagenError
from ragen.parallel.engine import EnvEngine
from ragen.parallel.interrupts import let_signals_pass


def add_metrics(entry: dict[str, Any], cache: dict[str, Any]) -> None:
    """Write an episode's metrics into its cache; an environment that failed has ``<tag>/env_error`` besides."""
    status, tag = entry["status"], entry["tag"]
    values: dict[str, list[float]] = {}
    error = None
    for turn in cache["history"]:
        info = turn.get("info", {})
        error = info.get("env_error", error)
        for key, value in info.items():
            number = _number(value) if key != "success" else None
            if number is not None:
                values.setdefault(key, []).append(number)
    cache["history"][-1]["metrics"] = values
    turns = len(cache["history"]) - 1
    metrics = {f"{tag}/success": float(status.terminated and not status.truncated)}
    metrics[f"{tag}/num_actions"] = status.num_actions
    metrics.update({f"{tag}/{key}": sum(numbers) / turns for key, numbers in values.items()})
    if error is not None:
        cache["env_error"] = error
        metrics[f"{tag}/env_error"] = 1.0
    cache["metrics"] = metrics


def add_pass_at_k(caches: Sequence[dict[str, Any]], group_size: int) -> None:
    """``pass@k``: whether any member of the group succeeded; branches are no members, and have none."""
    groups: dict[int, float] = {}
    members = [cache for cache in caches if "parent" not in cache]
    for cache in members:
        success = cache["metrics"][f"{cache['tag']}/success"]
        groups[cache["group_id"]] = max(groups.get(cache["group_id"], 0.0), success)
    for cache in members:
        cache["metrics"][f"{cache['tag']}/pass@{group_size}"] = groups[cache["group_id"]]


def add_rollout_info(caches: Sequence[dict[str, Any]], engine: EnvEngine) -> None:
    """What environments have to say about the whole rollout, such as the correct answer."""
    asked = [cache["env_id"] for cache in caches if _has_rollout_info(engine, cache["env_id"])]
    told = engine.read(asked, "rollout_info") if asked else {}
    for cache in caches:
        info = told.get(cache["env_id"]) or {}
        if isinstance(info, RagenError):
            tag = cache["tag"]
            story = f"env {cache['env_id']} (tag {tag!r}) has no rollout_info: {info}"
            engine.notices.once((tag, "rollout_info"), story)
            continue
        cache.update({key: value for key, value in info.items() if key not in cache})


def _has_rollout_info(engine: EnvEngine, env_id: int) -> bool:
    record = engine.records[env_id]
    told = getattr(record.spec.env_class, "rollout_info", BaseEnv.rollout_info)
    return told is not BaseEnv.rollout_info and record.failed is None


def _number(value: Any) -> float | None:
    """The value as a float; None for what is no number, which makes no metric."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except BaseException as error:  # whatever an environment's own class raises
        let_signals_pass(error)
        return None
