"""Re-exports projections of :mod:`ragen.llm_agent.prompts.replies`; nothing in ``ragen.env`` imports this module."""

from ragen.llm_agent.prompts.replies import *  # noqa: F403
