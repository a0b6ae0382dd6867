"""What an episode's metrics are: ``<tag>/success``, ``<tag>/num_actions``, infos, ``pass@k`` and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragen.env.base import BaseEnv
from ragen.errors import RagenError
from ragen.parallel.engine import EnvEngine
from ragen.parallel.interrupts import let_signals_pass

_SAYS_NOTHING = getattr(BaseEnv, "rollout_info", None)  # RAGEN's own base class has no such method
_PER_TURN = ("action_is_effective", "action_is_valid", "end_of_page")  # of WebShop's; its others are summed


def add_metrics(entry: dict[str, Any], cache: dict[str, Any], generation: int = 2025) -> None:
    """Write an episode's metrics into its cache; an environment that failed has ``<tag>/env_error`` besides.

    Args:
        entry: The environment's, with its status and handle.
        cache: Its rollout cache.
        generation: Of RAGEN, whose metrics they are.
    """
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
            elif generation == 2026 and key not in ("success", "env_error"):
                values.setdefault(key, [])  # RAGEN has a metric of it, which is 0
    cache["history"][-1]["metrics"] = values
    turns = len(cache["history"]) - 1
    means = {key: sum(numbers) / turns for key, numbers in values.items()}
    metrics = {"success": float(status.terminated and not status.truncated), "num_actions": status.num_actions}
    metrics.update(means if generation == 2025 else _metrics_2026(entry, values, means))
    cache["metrics"] = {f"{tag}/{key}": value for key, value in metrics.items()}
    if error is not None:
        cache["env_error"] = error
        cache["metrics"][f"{tag}/env_error"] = 1.0


def _metrics_2026(entry: dict[str, Any], values: dict[str, list[float]], means: dict[str, float]) -> dict[str, Any]:
    """The metrics that the generation of 2026 has beside success and actions, in its order."""
    metrics: dict[str, Any] = {}
    if (grid := _grid(entry)) is not None:
        metrics["max_tile"] = int(grid.max())
    if values.get("raw_reward"):
        metrics["episodic_return"] = sum(values["raw_reward"])
    if "webshop" in entry["tag"].lower():
        per_turn = {key: mean for key, mean in means.items() if key in _PER_TURN}
        metrics |= per_turn | {f"traj_sum/{key}": sum(values[key]) for key in means if key not in _PER_TURN}
    else:
        metrics |= means
    if values.get("score"):
        metrics["final_score"] = values["score"][-1]
    return metrics


def _grid(entry: dict[str, Any]) -> Any:
    """The environment's ``grid`` as an array of numbers; None if it has none."""
    if not hasattr(entry["env"], "grid"):
        return None
    import numpy as np  # late: who has no such environment need not load it

    try:
        grid = np.asarray(entry["env"].grid, dtype=float)
    except (TypeError, ValueError):
        return None
    return grid if grid.size else None


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
    told |= _correct_answers(caches, engine)
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
    told = getattr(record.spec.env_class, "rollout_info", _SAYS_NOTHING)
    return told is not _SAYS_NOTHING and record.failed is None


def _correct_answers(caches: Sequence[dict[str, Any]], engine: EnvEngine) -> dict[int, Any]:
    """What RAGEN's own MetamathQA has to say, which declares no ``rollout_info``."""
    records = [engine.records[cache["env_id"]] for cache in caches if cache["tag"] == "MetamathQA"]
    silent = [r.spec.env_id for r in records if not hasattr(r.spec.env_class, "rollout_info") and r.failed is None]
    answers = engine.read(silent, "correct_answer") if silent else {}
    return {
        env_id: answer if isinstance(answer, RagenError) else {"correct_answer": answer}
        for env_id, answer in answers.items()
    }


def _number(value: Any) -> float | None:
    """The value as a float; None for what is no number, which makes no metric."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except BaseException as error:  # whatever an environment's own class raises
        let_signals_pass(error)
        return None
