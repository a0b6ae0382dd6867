"""Re-exports :mod:`ragen.turns.container` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.container import *  # noqa: F403
