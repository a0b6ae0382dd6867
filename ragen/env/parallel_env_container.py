"""Re-exports :mod:`ragen.container.container` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.container.container import EnvironmentContainer, MultiProcessEnvironmentContainer, to_numpy

__all__ = ["EnvironmentContainer", "MultiProcessEnvironmentContainer", "to_numpy"]
