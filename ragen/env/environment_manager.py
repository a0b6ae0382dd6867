"""Re-exports :mod:`ragen.llm_agent.collecting.managers` publicly; nothing in ``ragen.env`` imports this module."""

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
