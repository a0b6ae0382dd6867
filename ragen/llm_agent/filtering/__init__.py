"""Which groups to train on (RAGEN's filters of 2025 and 2026), weights of advantages, and early stopping.

The tiny trainer and the bridge to verl read the configured filter with :func:`read_filter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.filtering.advantages import AdvantageWeights, LossScaling
    from ragen.llm_agent.filtering.early_stop import EarlyStop
    from ragen.llm_agent.filtering.group_filter import BestShare, GroupFilter, read_filter

__all__ = [
    "AdvantageWeights",
    "BestShare",
    "EarlyStop",
    "GroupFilter",
    "LossScaling",
    "read_filter",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("AdvantageWeights", "LossScaling"), "advantages"),
        "EarlyStop": "early_stop",
        **dict.fromkeys(("BestShare", "GroupFilter", "read_filter"), "group_filter"),
    },
)
