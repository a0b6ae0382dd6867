"""Selection of the groups to train on: RAGEN's filter of 2025 and that of 2026.

The tiny trainer and the bridge to verl read both with
:func:`~ragen.llm_agent.filtering.group_filter.read_filter`.
"""
