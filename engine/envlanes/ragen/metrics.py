"""The metrics of an episode: ``<tag>/success``, ``<tag>/num_actions``, infos, ``pass@k`` and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from envlanes.errors import steady_text
from envlanes.interrupts import let_signals_pass
from envlanes.ragen.step import success_of

SHOP_AVERAGES = ("action_is_effective", "action_is_valid", "end_of_page")
"""WebShop's infos that are averaged over turns."""


class Rules(NamedTuple):
    """The generation of RAGEN whose histories and metrics are shown.

    Attributes:
        generation: 2025 or 2026.
        as_in_ragen: Whether even what RAGEN clearly gets wrong is reproduced, as a checkout's own manager does.
    """

    generation: int = 2026
    as_in_ragen: bool = False

    def success_of(self, info: Mapping[str, Any]) -> bool | None:
        """Whether the info of an episode's last turn reports success; None if it does not say."""
        return bool(info.get("success", False)) if self.as_in_ragen else success_of(info)


RULES = Rules()


def env_error(history: Sequence[Mapping[str, Any]]) -> str | None:
    """The failure of an episode's environment; None if it did not fail."""
    found = [turn["info"]["env_error"] for turn in history if turn.get("info", {}).get("env_error")]
    return str(found[-1]) if found else None


def add_metrics(
    entry: dict[str, Any], cache: dict[str, Any], max_tile: int | None = None, rules: Rules = RULES
) -> None:
    """Write an episode's metrics into its cache; a failed environment also has ``<tag>/env_error``.

    An info's metric is its mean over the turns; of WebShop's, but for :data:`SHOP_AVERAGES`, the sum (``traj_sum/..``).
    ``episodic_return`` is the sum of ``raw_reward``, ``final_score`` the last ``score``.

    Args:
        entry: The environment, as ``EnvStateManager.envs`` has it.
        cache: Its rollout cache.
        max_tile: The largest tile of a board now; None without one.
        rules: The generation of RAGEN.
    """
    status, tag = entry["status"], entry["tag"]
    values = cache["history"][-1]["metrics"] = info_numbers(cache["history"], rules)
    metrics = {"success": float(status.terminated and not status.truncated), "num_actions": status.num_actions}
    metrics |= info_metrics(tag, values, len(cache["history"]) - 1, max_tile, rules)
    if error := env_error(cache["history"]):
        cache["env_error"] = error
        metrics["env_error"] = 1.0
    if "out_of_context" in cache:
        metrics["out_of_context"] = 1.0
    cache["metrics"] = {f"{tag}/{steady_text(key)}": value for key, value in metrics.items()}


def total(numbers: Sequence[float]) -> float:
    """The sum as RAGEN computes it: numpy adds from eight numbers on in another order than Python does."""
    import numpy as np  # late, so that help comes at once

    return float(np.sum(numbers))


def info_numbers(history: Sequence[dict[str, Any]], rules: Rules = RULES) -> dict[str, list[float]]:
    """The numbers in the infos of an episode's turns, by key."""
    values: dict[str, list[float]] = {}
    for turn in history:
        for key, value in turn.get("info", {}).items():
            if key in ("success", "env_error"):
                continue
            number = number_of(value, rules.as_in_ragen)
            if number is not None:
                values.setdefault(key, []).append(number)
            elif rules == (2026, True):
                values.setdefault(key, [])  # its metric is 0
    return values


def info_metrics(
    tag: str, values: dict[str, list[float]], turns: int, max_tile: int | None = None, rules: Rules = RULES
) -> dict[str, float]:
    """The metrics of an episode's infos, without the tag; see :func:`add_metrics`."""
    import numpy as np

    is_2026 = rules.generation == 2026
    summed = np.sum if rules.as_in_ragen else total
    metrics: dict[str, float] = {} if max_tile is None else {"max_tile": max_tile}
    if is_2026 and "raw_reward" in values:
        metrics["episodic_return"] = total(values["raw_reward"])
    for key, numbers in values.items():
        is_shop = "webshop" in tag.lower() if is_2026 else "Webshop" in key
        if is_shop and key not in SHOP_AVERAGES:
            metrics[f"traj_sum/{key}" if is_2026 else key] = summed(numbers)
        else:
            metrics[key] = summed(numbers) / turns
    if is_2026 and values.get("score"):
        metrics["final_score"] = values["score"][-1]
    return metrics


def largest_tile(grid: Any) -> int | None:
    """The largest number of a board; None if whatever has this name is no board."""
    import numpy as np

    try:
        return int(np.max(grid))
    except Exception:  # as in RAGEN
        return None


def add_pass_at_k(episodes: Sequence[dict[str, Any]], group_size: int) -> None:
    """``pass@k`` among the metrics of whole groups, k being their size: a part of one says nothing of k episodes.

    Episodes whose environment failed, or that miss a reply (rows with ``error``), are no members of a group.
    """
    groups: dict[int, list[dict[str, Any]]] = {}
    for episode in episodes:
        episode["metrics"].pop(f"{episode['tag']}/pass@{group_size}", None)  # an earlier run's
        if not episode.keys() & {"env_error", "error"}:
            groups.setdefault(episode["group_id"], []).append(episode)
    for members in groups.values():
        if len(members) == group_size:
            tag = members[0]["tag"]
            # A row says it itself.
            passed = float(any(each.get("success", each["metrics"].get(f"{tag}/success")) for each in members))
            for episode in members:
                episode["metrics"][f"{tag}/pass@{group_size}"] = passed


def number_of(value: Any, texts: bool = False) -> float | None:
    """The value as a float; None if it is not a number, and therefore no metric.

    Args:
        value: An info's value.
        texts: Whether a text that reads as a number is one.
    """
    if isinstance(value, str | bytes) and not texts:
        return None
    try:
        return float(value)
    except BaseException as error:  # an environment's own class may raise anything
        let_signals_pass(error)
        return None
