"""From environments to training data: the manager of environments, prompts, models and rollouts."""

from ragen.llm_agent import _moved  # noqa: F401  old paths go on working
