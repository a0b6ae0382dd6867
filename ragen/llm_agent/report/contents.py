"""What a report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragen.llm_agent.report.about import About
from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.rollout.timeline import Timeline


@dataclass(frozen=True)
class Report:
    """What a report shows; what is empty is left out.

    Attributes:
        title: Of the page.
        facts: What more to know about the run.
        episodes: The trajectories.
        timeline: Who did what when.
        lanes: The manager's ``LaneStats``.
        seconds: What took how long, in seconds; parts may overlap.
        history: The metrics of each training step, ``<tag>/<metric>``.
        notes: Further sentences.
        about: What the run is of.
        usage: What was used: ``requests``, ``retries``, ``prompt_tokens``, ``completion_tokens``, ``cost`` (dollars).
    """

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    episodes: Sequence[Episode] = ()
    timeline: Timeline | None = None
    lanes: Sequence[Any] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    history: Sequence[Mapping[str, float]] = ()
    notes: Sequence[str] = ()
    about: About = field(default_factory=About)
    usage: Mapping[str, float] = field(default_factory=dict)
