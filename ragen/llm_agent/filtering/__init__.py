"""Selection of groups to train on: RAGEN's filters of 2025 and 2026, which the tiny trainer and verl's bridge read."""

from ragen.llm_agent.filtering.group_filter import GroupFilter

__all__ = ["GroupFilter"]
