"""``EnvStateManager.show``: trajectories as they stand, to look at in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ragen.errors import InputError, StateError
from ragen.llm_agent.manager.branching import entry_of

if TYPE_CHECKING:
    from ragen.llm_agent.report.episode import Episode
    from ragen.llm_agent.report.notebook import RolloutView, TrajectoryView


def show(manager: Any, env_id: int | None = None) -> TrajectoryView | RolloutView:
    """What was played since the last reset, drawn by a notebook where it is the last line of a cell.

    Args:
        manager: The manager, which is asked nothing but what it knows.
        env_id: The trajectory's; None shows those of all environments.

    Raises:
        StateError: There was no reset yet.
        InputError: There is no such environment.
    """
    from ragen.llm_agent.report.notebook import RolloutView, TrajectoryView

    if manager.rollout_cache is None:
        raise StateError("there is no episode yet (or the last reset failed): call reset() first.")
    caches = {cache["env_id"]: cache for cache in manager.rollout_cache}
    if env_id is None:
        return RolloutView([_episode(manager, cache) for cache in caches.values()])
    if env_id not in caches:
        raise InputError(f"there is no environment {env_id!r} to show; there are {min(caches)} to {max(caches)}.")
    return TrajectoryView(_episode(manager, caches[env_id]))


def _episode(manager: Any, cache: Mapping[str, Any]) -> Episode:
    from ragen.llm_agent.report.episode import Episode

    env_id = cache["env_id"]
    entry = entry_of(manager, env_id)
    names, status = getattr(entry["config"], "action_lookup", None), entry["status"]
    metrics = {f"{cache['tag']}/success": float(status.terminated and not status.truncated)}
    error = _error(cache)
    state = {"metrics": metrics, **({} if error is None else {"env_error": error}), **cache}
    return Episode(
        state=state,
        seed=status.seed,
        home=manager.home(env_id),
        names=names if isinstance(names, Mapping) else None,
        is_over=status.terminated,
    )


def _error(cache: Mapping[str, Any]) -> Any:
    """Why its environment failed; None where it did not."""
    return next((turn["info"]["env_error"] for turn in cache["history"] if "env_error" in turn.get("info", {})), None)
