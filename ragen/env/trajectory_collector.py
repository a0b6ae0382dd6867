"""Re-exports :mod:`ragen.turns.collector` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.collector import *  # noqa: F403
