"""Workflows: the 120 orders in which the five types of hosts may be fixed.

Also computes a defender's compliance with its workflow, for each environment, and the reward for it.

A *fix* is a Remove or a Restore; its type is that of the host that it is for. Two definitions of a fix that complies:

``first_compromised`` (the default)
    Its type comes first in the workflow among the types that have a host with a session of Red before the action; if
    there are none, every fix complies. User0 does not count: Red cannot be removed from it, so ``user`` would always be
    compromised, and every fix of a later type a violation.
``fixed_before``
    Every earlier type in the workflow has already been fixed in this episode.

The *rate* of an episode is the fraction of its fixes that comply, None before the first one. It is worth
``alpha * rate - beta * (1 - rate)``, and ``-beta / 2`` without a fix. The reward of a step is the *change* of that
value, so that an episode's rewards add up to its final value minus that of an episode without a fix, and each step is
rewarded for its own action. ``alpha=30, beta=0`` is a bonus of 30 times the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations

import numpy as np

from ragen.cage2.layout import N_ACTIONS, WORKFLOW_TYPES, fix_target
from ragen.errors import ConfigError, InputError, WorkflowError

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

    def checked(self, order: Sequence[str] | str) -> Order:
        """An order, from a sequence of types or from a text with commas or ``>`` between them.

        Raises:
            WorkflowError: It does not name each of the five types once.
        """
        names = order.replace(">", ",").split(",") if isinstance(order, str) else list(order)
        found = tuple(str(name).strip() for name in names)
        if found not in self._numbers:
            raise WorkflowError(
                f"{order!r} is no workflow: expected each of {', '.join(self.types)} once, in any order."
            )
        return found

    def number(self, order: Sequence[str] | str) -> int:
        """The number of an order, 0 to 119."""
        return self._numbers[self.checked(order)]

    def positions(self, order: Sequence[str] | str) -> np.ndarray:
        """The position of each type in an order: int64, ``(5,)``, by the indices of types."""
        checked = self.checked(order)
        return np.array([checked.index(name) for name in self.types], np.int64)

    def order_to_onehot(self, order: Sequence[str] | str) -> np.ndarray:
        """The code of an order: float32, ``(25,)``; entry 5 * position + type is 1."""
        code = np.zeros((5, 5), np.float32)
        code[self.positions(order), np.arange(5)] = 1
        return code.reshape(-1)

    def onehot_to_order(self, code: np.ndarray) -> Order:
        """The order of a code.

        Raises:
            WorkflowError: It is not a valid code.
        """
        square = np.asarray(code)
        if square.shape != (25,):
            raise WorkflowError(f"a code of shape {square.shape} is of no workflow: expected (25,).")
        order = self.checked([self.types[index] for index in square.reshape(5, 5).argmax(1)])
        if not np.array_equal(self.order_to_onehot(order), square):
            raise WorkflowError("a code of a workflow has one 1 for each position, and is 0 elsewhere.")
        return order

    def kendall_distance(self, one: Sequence[str] | str, other: Sequence[str] | str) -> int:
        """The number of the ten pairs of types that are in opposite order: 0 to 10 (Kendall 1938)."""
        return int(self.distances[self.number(one), self.number(other)])

    @cached_property
    def distances(self) -> np.ndarray:
        """Kendall's distance between all orders: int64, ``(120, 120)``, by their numbers."""
        places = np.array([self.positions(order) for order in self.orders])
        first, second = np.array(list(combinations(range(5), 2))).T
        before = (places[:, first] < places[:, second]).astype(np.int64)
        return (before[:, None] != before[None]).sum(-1)


def order_text(order: Sequence[str]) -> str:
    """An order for display."""
    return " > ".join(order)


# Compliance


DEFINITIONS = ("first_compromised", "fixed_before")
NOTHING = -1  # the target of an action that is no fix

_TARGETS = np.array([NOTHING if (kind := fix_target(action)) is None else kind for action in range(N_ACTIONS)])


@dataclass(frozen=True)
class EpisodeCompliance:
    """The compliance of an episode with its workflow.

    Attributes:
        fixes: Number of fixes: its coverage.
        compliant: Number of compliant fixes.
    """

    fixes: int
    compliant: int

    @property
    def rate(self) -> float | None:
        """The fraction of fixes that complied; None without any."""
        return self.compliant / self.fixes if self.fixes else None

    @property
    def rate_or_half(self) -> float:
        """The rate, or 0.5 without fixes, which neither comply nor violate."""
        return self.compliant / self.fixes if self.fixes else 0.5


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
        manager: WorkflowManager | None = None,
    ) -> None:
        """Begin an episode in each environment.

        Args:
            n_envs: Number of environments.
            order: The workflow.
            definition: Which fixes comply; see :mod:`ragen.cage2.workflow`.
            alignment_alpha: The value of full compliance.
            alignment_beta: The cost of full violation.
            manager: The list of workflows; None for a new one.

        Raises:
            ConfigError: The definition is unknown.
            WorkflowError: The order is invalid.
        """
        if definition not in DEFINITIONS:
            raise ConfigError(f"definition = {definition!r}: expected one of {', '.join(DEFINITIONS)}.")
        self.n_envs = n_envs
        self._definition = definition
        self._alpha, self._beta = float(alignment_alpha), float(alignment_beta)
        self._positions = (manager or WorkflowManager()).positions(order)
        self.fixes = np.zeros(n_envs, np.int64)
        self.compliant = np.zeros(n_envs, np.int64)
        self._was_fixed = np.zeros((n_envs, 5), bool)

    def rates(self) -> list[float | None]:
        """The rate of each current episode so far; None before its first fix."""
        return [self.of(env_id).rate for env_id in range(self.n_envs)]

    def of(self, env_id: int) -> EpisodeCompliance:
        """The compliance of an environment's current episode so far."""
        return EpisodeCompliance(int(self.fixes[env_id]), int(self.compliant[env_id]))

    def values(self) -> np.ndarray:
        """The values of the current rates: float64, ``(n,)``."""
        rates = self.compliant / np.maximum(self.fixes, 1)
        worth = self._alpha * rates - self._beta * (1 - rates)
        return np.where(self.fixes > 0, worth, -self._beta / 2)

    def step(self, actions: np.ndarray, compromised_before: np.ndarray) -> np.ndarray:
        """Count a step of every environment.

        Args:
            actions: Blue's actions: integers below 145, ``(n,)``.
            compromised_before: Whether Red had a session on a host of each type before the action: bool, ``(n, 5)``.

        Returns:
            The reward of each: float64, ``(n,)``.

        Raises:
            InputError: A shape or an action is wrong; nothing was counted.
        """
        chosen, compromised = self._checked(actions, compromised_before)
        before = self.values()
        targets = _TARGETS[chosen]
        is_fix = targets != NOTHING
        complies = is_fix & self._complies(targets, compromised)
        self.fixes += is_fix
        self.compliant += complies
        self._was_fixed[np.flatnonzero(is_fix), targets[is_fix]] = True
        return self.values() - before

    def end(self, env_id: int) -> EpisodeCompliance:
        """End an environment's episode; returns its compliance, and resets the counts."""
        ended = self.of(env_id)
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

    def _checked(self, actions: np.ndarray, compromised: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen, flags = np.asarray(actions), np.asarray(compromised, bool)
        if chosen.shape != (self.n_envs,) or not np.issubdtype(chosen.dtype, np.integer):
            raise InputError(f"actions of shape {chosen.shape}, {chosen.dtype}: expected ({self.n_envs},) integers.")
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < N_ACTIONS):
            raise InputError(f"an action of {chosen.min()} to {chosen.max()}: expected 0 to {N_ACTIONS - 1}.")
        if flags.shape != (self.n_envs, 5):
            raise InputError(f"compromised_before of shape {flags.shape}: expected ({self.n_envs}, 5).")
        return chosen, flags
