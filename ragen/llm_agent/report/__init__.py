"""``report.html``: a run to look at in a browser, in one file that loads nothing and trusts nothing.

The command writes one with ``report: true`` (or ``output.report: true``). A trainer calls::

    proxy.record_lanes = wants_report(config)     # before the rollouts
    ...
    write_report(report_of(proxy, "train", history=metrics_of_each_step), folder / "report.html")

What models and environments wrote is shown as text: escaped, bounded, invisible characters made visible. The page's
content security policy lets its own script run and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ragen.files import write_whole
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.manager.branching import entry_of
from ragen.llm_agent.report.browser import Episode
from ragen.llm_agent.report.page import Report, render
from ragen.llm_agent.rollout.timeline import Timeline

__all__ = ["Episode", "Report", "render", "report_of", "wants_report", "write_report"]

KEYS = ("report", "output.report")


class PlayedRollout(Protocol):
    """What a report shows: such as an ``LLMAgentProxy`` after a rollout, whose attributes these are."""

    config: Any
    actor: Any
    failures: dict[int, str]
    rollout_states: list[dict[str, Any]]
    timeline: Timeline

    @property
    def seconds(self) -> dict[str, float]:
        """What the rollout spent its time on."""

    def prepare(self, val: bool = False) -> tuple[Any, Any]:
        """The managers of environments and of contexts."""


def wants_report(config: Any) -> bool:
    """Whether a configuration asks for a report, by ``report`` or ``output.report``.

    Raises:
        ConfigError: A key is neither true nor false.
    """
    wanted = [setting(config, key, bool, False) for key in KEYS]  # both are checked
    return any(wanted)


def report_of(
    proxy: PlayedRollout,
    mode: str,
    title: str = "",
    facts: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, float]] = (),
    notes: Sequence[str] = (),
) -> Report:
    """The report of a proxy's last rollout.

    Args:
        proxy: After a rollout, its managers still open.
        mode: Which of its managers played: ``"train"`` or ``"val"``.
        title: Of the page.
        facts: More to know about the run.
        history: The metrics of each training step, as ``meta_info["metrics"]`` has them; a key ``step`` numbers it.
        notes: Further sentences.
    """
    es_manager, _ = proxy.prepare(val=mode == "val")
    known = {"mode": mode, "backend": setting(proxy.config, "actor.backend", str, type(proxy.actor).__name__)}
    return Report(
        title=title or f"Rollout ({mode})",
        facts={**known, **(facts or {})},
        episodes=[_episode(proxy, es_manager, state) for state in proxy.rollout_states],
        timeline=proxy.timeline,
        lanes=es_manager.lane_stats(),
        seconds=proxy.seconds,
        history=history,
        notes=notes,
    )


def write_report(report: Report, path: Path) -> None:
    """Write a report; the folder is made if it is not there, and an older report is replaced as a whole."""
    write_whole(path, render(report))


def _episode(proxy: PlayedRollout, es_manager: Any, state: Mapping[str, Any]) -> Episode:
    env_id = state["env_id"]
    entry = entry_of(es_manager, env_id)
    names = getattr(entry["config"], "action_lookup", None)
    return Episode(
        state=state,
        seed=entry["status"].seed,
        home=es_manager.home(env_id),
        names=names if isinstance(names, Mapping) else None,
        error=proxy.failures.get(env_id),
        replies=getattr(proxy.actor, "replies", {}).get(env_id, ()),
    )
