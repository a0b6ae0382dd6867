"""Re-exports :mod:`ragen.turns.container` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.container import EnvironmentContainer, MultiProcessEnvironmentContainer, to_numpy

__all__ = ["EnvironmentContainer", "MultiProcessEnvironmentContainer", "to_numpy"]
