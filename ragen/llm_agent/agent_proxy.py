""":class:`LLMAgentProxy` under RAGEN's module name, and the command ``python -m ragen.llm_agent.agent_proxy``.

The class is defined in :mod:`ragen.llm_agent.rollout.proxy`, the command in :mod:`ragen.llm_agent.rollout.command`, and
RAGEN's wrapper of a model in :mod:`ragen.llm_agent.backends.wrappers`. Importing this module imports neither torch nor
verl.
"""

import sys

from ragen.llm_agent.backends.wrappers import VllmWrapperWg
from ragen.llm_agent.rollout.command import main
from ragen.llm_agent.rollout.proxy import LLMAgentProxy

__all__ = ["LLMAgentProxy", "VllmWrapperWg", "main"]

if __name__ == "__main__":
    sys.exit(main())
