"""Re-exports :mod:`ragen.turns.managers` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.managers import (
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
