"""What rollouts come to: results by tag, comparisons of runs, and whether thoughts depend on prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.evaluation.collapse import CollapseDetector, PlayedThoughts

__all__ = [
    "CollapseDetector",
    "PlayedThoughts",
]

__getattr__, __dir__ = attach(
    __name__,
    dict.fromkeys(("CollapseDetector", "PlayedThoughts"), "collapse"),
)
