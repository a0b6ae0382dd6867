"""Containers of environments, under the name by which they were first asked for; see :mod:`ragen.container.container`.

Nothing of ``ragen.env`` imports this module: what it gives stands on the engine, a floor above the games.
"""

from ragen.container.container import EnvironmentContainer, MultiProcessEnvironmentContainer, to_numpy

__all__ = ["EnvironmentContainer", "MultiProcessEnvironmentContainer", "to_numpy"]
