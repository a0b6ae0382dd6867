"""Re-exports :mod:`ragen.turns.managers` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.managers import *  # noqa: F403
