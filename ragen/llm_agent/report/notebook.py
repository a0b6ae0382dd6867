"""Trajectories and rollouts in a notebook: ``manager.show`` returns a view that is displayed as a cell's last line.

The views have no script and load nothing, and show the output of environments and models as text, as the page does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen.errors import InputError, StateError
from ragen.llm_agent.report.contents import Episode
from ragen.llm_agent.report.page import STYLE
from ragen.llm_agent.report.text import shown
from ragen.llm_agent.report.trajectories import TrajectoryWriter, row_of
from ragen.llm_agent.rollout.trajectories import names_of_actions

MOST_SHOWN = 50  # trajectories of a rollout that can be opened
_STYLE = (  # the page's own, limited to the view
    ".ragen-view { padding: 4px 8px; background: var(--paper); color: var(--ink); font: 14px/1.5 system-ui, sans-serif;"
    f" summary {{ cursor: pointer; }} summary span, b span {{ margin-right: 12px; }} {STYLE.replace(':root', '&')} }}"
)


@dataclass(frozen=True)
class TrajectoryView:
    """A view of a trajectory.

    Attributes:
        episode: The trajectory; its turns are those of the manager's cache, so a later display shows later turns.
    """

    episode: Episode

    def __repr__(self) -> str:
        """A line of text, for displays without HTML."""
        return f"<trajectory {_line(self.episode)}>"

    def _repr_html_(self) -> str:
        """All its turns as HTML."""
        return _framed(f"<b>{_head(self.episode)}</b>{TrajectoryWriter().body(self.episode)}")


@dataclass(frozen=True)
class RolloutView:
    """A view of a rollout.

    Attributes:
        episodes: Its trajectories.
    """

    episodes: Sequence[Episode]

    def __repr__(self) -> str:
        """A line for each trajectory, for displays without HTML."""
        return "\n".join(["<rollout", *(f"  {_line(episode)}" for episode in self.episodes), ">"])

    def _repr_html_(self) -> str:
        """A line for each trajectory as HTML, which can be opened."""
        writer, some = TrajectoryWriter(), self.episodes[:MOST_SHOWN]
        rows = "".join(
            f"<details><summary>{_head(episode)}</summary>{writer.body(episode)}</details>" for episode in some
        )
        left = len(self.episodes) - len(some)
        more = f"<p>{left} more: show(env_id) shows one of them.</p>" if left else ""
        return _framed(f"{rows}{more}")


def _framed(html: str) -> str:
    return f'<div class="ragen-view"><style>{_STYLE}</style>{html}</div>'


def _words(episode: Episode) -> list[str]:
    return [part if isinstance(part, str) else part[0] for part in row_of(episode).parts]


def _line(episode: Episode) -> str:
    return ", ".join(_words(episode))


def _head(episode: Episode) -> str:
    return " ".join(f"<span>{shown(words, 200)}</span>" for words in _words(episode))


# The view of a manager


def show(manager: Any, env_id: int | None = None) -> TrajectoryView | RolloutView:
    """The trajectories since the last reset, as a view for a notebook.

    Args:
        manager: The manager; its environments are not called.
        env_id: The environment of one trajectory; None shows all.

    Raises:
        StateError: There was no reset yet.
        InputError: There is no such environment.
    """
    if manager.rollout_cache is None:
        raise StateError("there is no episode yet, or the last reset failed; call reset() first.")
    caches = {cache["env_id"]: cache for cache in manager.rollout_cache}
    if env_id is None:
        return RolloutView([_episode(manager, cache) for cache in caches.values()])
    if env_id not in caches:
        raise InputError(f"there is no environment {env_id!r} to show; there are {min(caches)} to {max(caches)}.")
    return TrajectoryView(_episode(manager, caches[env_id]))


def _episode(manager: Any, cache: Mapping[str, Any]) -> Episode:
    env_id = cache["env_id"]
    entry = manager.envs[env_id]
    status = entry["status"]
    metrics = {f"{cache['tag']}/success": float(status.terminated and not status.truncated)}
    error = _error(cache)
    state = {"metrics": metrics, **({} if error is None else {"env_error": error}), **cache}
    return Episode(
        state=state,
        seed=status.seed,
        home=manager.home(env_id),
        names=names_of_actions(entry),
        is_over=status.terminated,
    )


def _error(cache: Mapping[str, Any]) -> Any:
    """Why its environment failed; None if it did not."""
    return next((turn["info"]["env_error"] for turn in cache["history"] if "env_error" in turn.get("info", {})), None)
