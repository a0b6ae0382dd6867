"""Managers of environments, under the name by which they were first asked for; see :mod:`ragen.container.managers`.

Nothing of ``ragen.env`` imports this module: what it gives stands on the engine, a floor above the games.
"""

from ragen.container.managers import (
    BanditEnvironmentManager,
    CountdownEnvironmentManager,
    EnvironmentManagerBase,
    FrozenLakeEnvironmentManager,
    MetaMathQAEnvironmentManager,
    SokobanEnvironmentManager,
    WebShopEnvironmentManager,
)
from ragen.container.memory import SimpleMemory

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
