"""From environments to training data: the managers of environments and prompts, models, and rollouts.

    from verl import DataProto

    from ragen.llm_agent import LLMAgentProxy
    from ragen.llm_agent.backends import create_backend, create_tokenizer
    from ragen import load_config

    config = load_config("base")
    tokenizer = create_tokenizer(config)
    with LLMAgentProxy(config, create_backend(config, tokenizer), tokenizer) as proxy:
        batch = proxy.rollout(DataProto(meta_info={}))  # DataProto, with prompts, replies, loss masks and scores

The packages ``backends``, ``filtering`` and ``rollout`` have public names
of their own. RAGEN's module names (``agent_proxy``, ``ctx_manager``, ``es_manager``) work too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.environments import groups_of
    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.llm_agent.prompts.settings import ContextSettings
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy

__all__ = [
    "ContextManager",
    "ContextSettings",
    "EnvStateManager",
    "LLMAgentProxy",
    "groups_of",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "ContextManager": "ctx_manager",
        "ContextSettings": "prompts.settings",
        "EnvStateManager": "es_manager",
        "LLMAgentProxy": "rollout.proxy",
        "groups_of": "environments",
    },
)
