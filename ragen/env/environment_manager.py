"""Managers of containers, under the name by which they were first asked for.

They are in :mod:`ragen.llm_agent.collecting.managers`. Nothing of ``ragen.env`` imports this module: what it gives
writes prompts, floors above the games.
"""

from ragen.llm_agent.collecting.managers import (
    BanditEnvironmentManager,
    CountdownEnvironmentManager,
    EnvironmentManagerBase,
    FrozenLakeEnvironmentManager,
    MetaMathQAEnvironmentManager,
    SimpleMemory,
    SokobanEnvironmentManager,
    WebShopEnvironmentManager,
)

__all__ = [
    "BanditEnvironmentManager",
    "CountdownEnvironmentManager",
    "EnvironmentManagerBase",
    "FrozenLakeEnvironmentManager",
    "MetaMathQAEnvironmentManager",
    "SimpleMemory",
    "SokobanEnvironmentManager",
    "WebShopEnvironmentManager",
]
