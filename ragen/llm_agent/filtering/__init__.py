"""Selection of groups to train on (RAGEN's filters of 2025 and 2026), weights of advantages, and early stopping.

The tiny trainer and the bridge to verl read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.filtering.advantages import AdvantageWeights
    from ragen.llm_agent.filtering.early_stop import EarlyStop
    from ragen.llm_agent.filtering.group_filter import GroupFilter

__all__ = [
    "AdvantageWeights",
    "EarlyStop",
    "GroupFilter",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "AdvantageWeights": "advantages",
        "EarlyStop": "early_stop",
        "GroupFilter": "group_filter",
    },
)
