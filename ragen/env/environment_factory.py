"""Re-exports :mod:`ragen.turns.factory` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.factory import *  # noqa: F403
