"""Three simple ways to play Blue, by the 52 bits alone: yardsticks for simulators and for learners."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ragen.cage2 import layout


class Policy(Protocol):
    """Chooses Blue's actions for one episode."""

    def act(self, bits: Sequence[Any]) -> int:
        """The action for an observation of 52 bits."""


class Sleep:
    """Does nothing."""

    def __init__(self, seed: int) -> None:
        """Draw nothing."""

    def act(self, bits: Sequence[Any]) -> int:
        """Sleep."""
        return layout.SLEEP


class Random:
    """Takes any of the 145 actions, each as often."""

    def __init__(self, seed: int) -> None:
        """Draw from a generator of its own."""
        self._rng = random.Random(f"random policy {seed}")

    def act(self, bits: Sequence[Any]) -> int:
        """Any action."""
        return self._rng.randrange(layout.N_ACTIONS)


class ReactRestore:
    """Monitors; then restores, one after the other, the hosts that showed an exploit; then monitors again.

    After the challenge's baseline of that name, which sees process ids where this sees bits: User0 is left alone, and
    what shows while it restores is missed.
    """

    def __init__(self, seed: int) -> None:
        """Draw nothing."""
        self._waiting: list[int] = []
        self._has_monitored = False

    def act(self, bits: Sequence[Any]) -> int:
        """Restore the host that waits longest, or monitor."""
        if self._has_monitored:
            self._waiting += [host for host in _exploited(bits) if host not in (layout.FOOTHOLD, *self._waiting)]
        self._has_monitored = not self._waiting
        return layout.RESTORE + self._waiting.pop(0) if self._waiting else layout.MONITOR


def _exploited(bits: Sequence[Any]) -> list[int]:
    shown = layout.ACTIVITY["exploit"]
    return [host for host in range(layout.N_HOSTS) if (int(bits[4 * host]), int(bits[4 * host + 1])) == shown]


POLICIES: dict[str, Callable[[int], Policy]] = {"Sleep": Sleep, "random": Random, "React-Restore": ReactRestore}
