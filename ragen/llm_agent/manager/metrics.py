"""The metrics of an episode: ``<tag>/success``, ``<tag>/num_actions``, infos, ``pass@k`` and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envlanes.engine import EnvEngine
from envlanes.interrupts import let_signals_pass
from ragen.env.base import BaseEnv
from ragen.errors import RagenError, steady_text
from ragen.validity import env_error, is_valid

_SAYS_NOTHING = getattr(BaseEnv, "rollout_info", None)  # the base class of a checkout of RAGEN has no such method


def add_metrics(entry: dict[str, Any], cache: dict[str, Any], max_tile: Any = None) -> None:
    """Write an episode's metrics into its cache; a failed environment also has ``<tag>/env_error``.

    An info's metric is its mean over the turns; of WebShop's, but for :data:`SHOP_AVERAGES`, the sum (``traj_sum/..``).
    ``episodic_return`` is the sum of ``raw_reward``, ``final_score`` the last ``score``.

    Args:
        entry: The environment, as ``EnvStateManager.envs`` has it.
        cache: Its rollout cache.
        max_tile: The largest tile of a board now; None without one.
    """
    status, tag = entry["status"], entry["tag"]
    error = None
    for turn in cache["history"]:
        error = env_error(turn.get("info", {})) or error
    values = cache["history"][-1]["metrics"] = info_numbers(cache["history"])
    metrics = {"success": float(status.terminated and not status.truncated), "num_actions": status.num_actions}
    metrics |= info_metrics(tag, values, len(cache["history"]) - 1, max_tile)
    if error is not None:
        cache["env_error"] = error
        metrics["env_error"] = 1.0
    if "out_of_context" in cache:
        metrics["out_of_context"] = 1.0
    cache["metrics"] = {f"{tag}/{steady_text(key)}": value for key, value in metrics.items()}


def total(numbers: Sequence[float]) -> float:
    """The sum as RAGEN computes it: numpy adds from eight numbers on in another order than Python does."""
    import numpy as np  # late, so that help comes at once

    return float(np.sum(numbers))


SHOP_AVERAGES = ("action_is_effective", "action_is_valid", "end_of_page")
"""WebShop's infos that are averaged over turns."""


def info_numbers(history: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The numbers in the infos of an episode's turns, by key."""
    values: dict[str, list[float]] = {}
    for turn in history:
        for key, value in turn.get("info", {}).items():
            number = number_of(value) if key != "success" else None
            if number is not None:
                values.setdefault(key, []).append(number)
    return values


def info_metrics(tag: str, values: dict[str, list[float]], turns: int, max_tile: Any = None) -> dict[str, float]:
    """The metrics of an episode's infos, without the tag; see :func:`add_metrics`."""
    metrics: dict[str, float] = {} if max_tile is None else {"max_tile": max_tile}
    if "raw_reward" in values:
        metrics["episodic_return"] = total(values["raw_reward"])
    for key, numbers in values.items():
        if "webshop" in tag.lower() and key not in SHOP_AVERAGES:
            metrics[f"traj_sum/{key}"] = total(numbers)
        else:
            metrics[key] = total(numbers) / turns
    if values.get("score"):
        metrics["final_score"] = values["score"][-1]
    return metrics


def largest_tiles(caches: Sequence[dict[str, Any]], engine: EnvEngine) -> dict[int, int]:
    """The largest tile of every environment whose class has a ``grid``, by env_id."""
    boards = [cache["env_id"] for cache in caches if _has_grid(engine, cache["env_id"])]
    grids = engine.read(boards, "grid") if boards else {}
    largest = {env_id: _largest(grid) for env_id, grid in grids.items() if not isinstance(grid, RagenError)}
    return {env_id: tile for env_id, tile in largest.items() if tile is not None}


def _has_grid(engine: EnvEngine, env_id: int) -> bool:
    record = engine.records[env_id]
    has_grid = hasattr(record.spec.env_class, "grid") or record.spec.env_type == "game_2048"  # RAGEN's declares none
    return has_grid and record.failed is None


def _largest(grid: Any) -> int | None:
    try:
        return int(max(map(max, grid)))
    except (TypeError, ValueError):
        return None


def add_pass_at_k(caches: Sequence[dict[str, Any]], group_size: int) -> None:
    """``pass@k``, k being the size of a group: of whole groups alone, since a part says nothing of k episodes.

    Branches and trajectories whose environment failed are no members of a group, and have none.
    """
    groups: dict[int, list[float]] = {}
    members = [cache for cache in caches if "parent" not in cache and is_valid(cache)]
    for cache in members:
        groups.setdefault(cache["group_id"], []).append(cache["metrics"][f"{cache['tag']}/success"])
    for cache in members:
        successes = groups[cache["group_id"]]
        if len(successes) == group_size:
            cache["metrics"][f"{cache['tag']}/pass@{group_size}"] = float(any(successes))


def add_rollout_info(caches: Sequence[dict[str, Any]], engine: EnvEngine) -> None:
    """What environments have to say about the whole rollout, such as the correct answer."""
    asked = [cache["env_id"] for cache in caches if _has_rollout_info(engine, cache["env_id"])]
    infos = engine.read(asked, "rollout_info") if asked else {}
    infos |= _correct_answers(caches, engine)
    for cache in caches:
        info = infos.get(cache["env_id"]) or {}
        if isinstance(info, RagenError):
            tag = cache["tag"]
            story = f"env {cache['env_id']} (tag {tag!r}) has no rollout_info: {info}"
            engine.messages.say(story, (tag, "rollout_info"))
            continue
        cache.update({key: value for key, value in info.items() if key not in cache})


def _has_rollout_info(engine: EnvEngine, env_id: int) -> bool:
    record = engine.records[env_id]
    method = getattr(record.spec.env_class, "rollout_info", _SAYS_NOTHING)
    return method is not _SAYS_NOTHING and record.failed is None


def _correct_answers(caches: Sequence[dict[str, Any]], engine: EnvEngine) -> dict[int, Any]:
    """What RAGEN's own MetamathQA has to say, which declares no ``rollout_info``."""
    records = [engine.records[cache["env_id"]] for cache in caches if cache["tag"] == "MetamathQA"]
    silent = [r.spec.env_id for r in records if not hasattr(r.spec.env_class, "rollout_info") and r.failed is None]
    answers = engine.read(silent, "correct_answer") if silent else {}
    return {
        env_id: answer if isinstance(answer, RagenError) else {"correct_answer": answer}
        for env_id, answer in answers.items()
    }


def number_of(value: Any) -> float | None:
    """The value as a float; None if it is not a number, and therefore no metric."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except BaseException as error:  # whatever an environment's own class raises
        let_signals_pass(error)
        return None
