"""``report.html``: a run's report for a browser, in one file that loads no external resources.

The command writes one with ``report: true`` (or ``output.report: true``). A trainer calls::

    proxy.record_lanes = wants_report(config)     # before the rollouts
    ...
    write_report(report_of(proxy, "train", history=metrics_of_each_step), folder / "report.html")

``report: live`` serves the same page while a rollout goes on; see :mod:`ragen.llm_agent.report.live`.

The output of models and environments is shown as text: escaped, limited in length, with invisible characters made
visible. The page's content security policy allows its own script and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ragen.llm_agent.config.report import wants_live, wants_report
from ragen.llm_agent.manager.branching import entry_of
from ragen.llm_agent.report.contents import About, Episode, Messages, Report, episode_of
from ragen.llm_agent.report.page import render, write_page
from ragen.llm_agent.rollout.timeline import Timeline
from ragen.llm_agent.rollout.trajectories import names_of_actions

__all__ = ["About", "Episode", "Report", "render", "report_of", "wants_live", "wants_report", "write_report"]


class PlayedRollout(Protocol):
    """The attributes of a played rollout that a report needs, as ``LLMAgentProxy`` has them."""

    config: Any
    actor: Any
    failures: dict[int, str]
    rollout_states: list[dict[str, Any]]
    timeline: Timeline

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by activity of the rollout."""

    def prepare(self, val: bool = False) -> tuple[Any, Any]:
        """The managers of environments and of contexts."""


def report_of(
    proxy: PlayedRollout,
    mode: str,
    title: str = "",
    facts: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, float]] = (),
    notes: Sequence[str] = (),
    earlier: Iterable[Mapping[str, Any]] = (),
) -> Report:
    """The report of a proxy's last rollout.

    Args:
        proxy: After a rollout, its managers still open.
        mode: Which of its managers played: ``"train"`` or ``"val"``.
        title: The page's title.
        facts: Further facts about the run.
        history: The metrics of each training step, as ``meta_info["metrics"]`` has them; a key ``step`` numbers it.
        notes: Further sentences.
        earlier: Records of trajectories of an earlier run; see :mod:`~ragen.llm_agent.rollout.trajectories`.
    """
    es_manager, _ = proxy.prepare(val=mode == "val")
    played = [episode_of_state(proxy, mode, state) for state in proxy.rollout_states]
    episodes = sorted([*map(episode_of, earlier), *played], key=lambda episode: episode.state["env_id"])
    about = About.of_config(proxy.config, mode, [episode.seed for episode in episodes])
    return Report(
        title=title or about.title or f"a model ({mode})",
        facts=facts or {},
        episodes=episodes,
        timeline=proxy.timeline,
        lanes=es_manager.lane_stats(),
        seconds=proxy.seconds,
        history=history,
        notes=notes,
        about=about,
        usage=proxy.actor.usage,
    )


def write_report(report: Report, path: Path) -> None:
    """Write a report; creates the folder if needed, and replaces an older report atomically.

    Raises:
        ConfigError: It cannot be written there.
    """
    write_page(render(report), path)


def episode_of_state(proxy: PlayedRollout, mode: str, state: dict[str, Any]) -> Episode:
    """A rollout cache as an episode.

    Args:
        proxy: The proxy that played it, with open managers.
        mode: Which of its managers played.
        state: The cache.
    """
    es_manager, ctx_manager = proxy.prepare(val=mode == "val")
    env_id = state["env_id"]
    entry = entry_of(es_manager, env_id)
    episode = Episode(
        state=state,
        seed=entry["status"].seed,
        home=es_manager.home(env_id),
        names=names_of_actions(entry["config"]),
        error=proxy.failures.get(env_id),
        replies=proxy.actor.replies.get(env_id, ()),
        chat=ctx_manager.transcript(state),
    )
    return replace(episode, asked=_separate_prompts(ctx_manager, episode))


def _separate_prompts(ctx_manager: Any, episode: Episode) -> dict[int, Messages] | None:
    """The prompts that differ from the chat up to that turn."""
    prompts = {place: ctx_manager.prompt(episode.state, place) for place in range(len(episode.turns))}
    return {place: prompt for place, prompt in prompts.items() if prompt != list(episode.prompt(place))} or None
