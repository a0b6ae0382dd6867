"""Which groups of a step to train on: RAGEN's two ways to choose, that of 2025 and that of 2026.

Both are read from the same keys (:func:`~ragen.llm_agent.filtering.group_filter.read_filter`), and both are used by the
tiny trainer and by the bridge to verl.
"""
