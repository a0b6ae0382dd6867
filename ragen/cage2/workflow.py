"""Workflows: the 120 orders in which the five types of hosts may be fixed.

Also computes a defender's compliance with its workflow, for each environment, and the reward for it.

A *fix* is a Remove or a Restore; its type is that of the host that it is for. Two definitions of a fix that complies:

``first_compromised`` (the default)
    Its type comes first in the workflow among the types that have a host with a session of Red before the action; if
    there are none, every fix complies. User0 does not count: Red cannot be removed from it, so ``user`` would always be
    compromised, and every fix of a later type a violation.
``fixed_before``
    Every earlier type in the workflow has already been fixed in this episode.

The *rate* of an episode is the fraction of its fixes that comply. It is worth
``alpha * rate - beta * (1 - rate)``, and ``-beta / 2`` without a fix. The reward of a step is the *change* of that
value, so that an episode's rewards add up to its final value minus that of an episode without a fix, and each step is
rewarded for its own action. ``alpha=30, beta=0`` is a bonus of 30 times the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import permutations

import numpy as np

from ragen.cage2.layout import FIXES, N_ACTIONS, WORKFLOW_TYPES
from ragen.errors import ConfigError, WorkflowError

Order = tuple[str, ...]


class WorkflowManager:
    """All workflows, their numbers, their codes for a network, and the distances between them.

    Attributes:
        types: The five types, in the order of their indices.
        orders: The 120 orders, by their numbers.
    """

    def __init__(self) -> None:
        """List the orders."""
        self.types: Order = tuple(WORKFLOW_TYPES)
        self.orders: tuple[Order, ...] = tuple(permutations(self.types))
        self._numbers = {order: number for number, order in enumerate(self.orders)}

    def checked(self, order: Sequence[str]) -> Order:
        """An order as a tuple.

        Raises:
            WorkflowError: It does not name each of the five types once.
        """
        return self.orders[self.number(order)]

    def number(self, order: Sequence[str]) -> int:
        """The number of an order, 0 to 119; see :meth:`checked`."""
        if (found := self._numbers.get(tuple(order))) is None:
            raise WorkflowError(f"{order!r} is no workflow: expected each of {', '.join(self.types)} once.")
        return found

    def positions(self, order: Sequence[str]) -> np.ndarray:
        """The position of each type in an order: int64, ``(5,)``, by the indices of types."""
        checked = self.checked(order)
        return np.array([checked.index(name) for name in self.types], np.int64)

    def order_to_onehot(self, order: Sequence[str]) -> np.ndarray:
        """The code of an order: float32, ``(25,)``; entry 5 * position + type is 1."""
        code = np.zeros((5, 5), np.float32)
        code[self.positions(order), np.arange(5)] = 1
        return code.reshape(-1)

    @cached_property
    def distances(self) -> np.ndarray:
        """Kendall's distance between all orders: int64, ``(120, 120)``, by their numbers."""
        places = np.array([self.positions(order) for order in self.orders])
        before = (places[:, :, None] < places[:, None]).reshape(len(places), -1)
        return (before[:, None] != before[None]).sum(-1) // 2


# Compliance


DEFINITIONS = ("first_compromised", "fixed_before")
NOTHING = -1  # the target of an action that is no fix

_TARGETS = np.array([FIXES.get(action, NOTHING) for action in range(N_ACTIONS)])


class Compliance:
    """Counts fixes in the current episodes of environments with the same workflow.

    Attributes:
        fixes: Number of fixes in each: int64, ``(n,)``.
        compliant: Number of compliant fixes in each: int64, ``(n,)``.
    """

    def __init__(
        self,
        n_envs: int,
        order: Sequence[str],
        definition: str = "first_compromised",
        alignment_alpha: float = 10.0,
        alignment_beta: float = 10.0,
    ) -> None:
        """Begin an episode in each environment.

        Args:
            n_envs: Number of environments.
            order: The workflow.
            definition: The fixes that comply; see :mod:`ragen.cage2.workflow`.
            alignment_alpha: The value of full compliance.
            alignment_beta: The cost of full violation.

        Raises:
            ConfigError: The definition is unknown.
            WorkflowError: The order is invalid.
        """
        if definition not in DEFINITIONS:
            raise ConfigError(f"definition = {definition!r}: expected one of {', '.join(DEFINITIONS)}.")
        self._definition = definition
        self._alpha, self._beta = float(alignment_alpha), float(alignment_beta)
        self._positions = WorkflowManager().positions(order)
        self.fixes = np.zeros(n_envs, np.int64)
        self.compliant = np.zeros(n_envs, np.int64)
        self._was_fixed = np.zeros((n_envs, 5), bool)

    def rates(self) -> np.ndarray:
        """The fractions of fixes that complied; 0.5 without fixes, which neither comply nor violate: ``(n,)``."""
        return np.where(self.fixes, self.compliant / np.maximum(self.fixes, 1), 0.5)

    def values(self) -> np.ndarray:
        """The values of the current rates: float64, ``(n,)``."""
        worth = self._alpha * self.rates() - self._beta * (1 - self.rates())
        return np.where(self.fixes, worth, -self._beta / 2)

    def step(self, actions: np.ndarray, compromised_before: np.ndarray) -> np.ndarray:
        """Count a step of every environment.

        Args:
            actions: Blue's actions: integers below 145, ``(n,)``.
            compromised_before: Whether Red had a session on a host of each type before the action: bool, ``(n, 5)``.

        Returns:
            The reward of each: float64, ``(n,)``.
        """
        before = self.values()
        targets = _TARGETS[actions]
        is_fix = targets != NOTHING
        complies = is_fix & self._complies(targets, np.asarray(compromised_before, bool))
        self.fixes += is_fix
        self.compliant += complies
        self._was_fixed[is_fix, targets[is_fix]] = True
        return self.values() - before

    def end(self, env_id: int) -> tuple[float, int]:
        """End an environment's episode; returns its rate and its number of fixes, and resets the counts."""
        ended = float(self.rates()[env_id]), int(self.fixes[env_id])
        self.fixes[env_id] = self.compliant[env_id] = 0
        self._was_fixed[env_id] = False
        return ended

    def _complies(self, targets: np.ndarray, compromised: np.ndarray) -> np.ndarray:
        """Whether a fix of these types would comply; ``(n,)``."""
        positions = self._positions[targets]
        if self._definition == "fixed_before":
            return positions <= self._first(~self._was_fixed)
        first = self._first(compromised)
        return (first == 5) | (positions == first)

    def _first(self, is_member: np.ndarray) -> np.ndarray:
        """The first position in the workflow of a type in a set, for each environment; 5 for an empty set."""
        return np.where(is_member, self._positions, 5).min(1)
