"""Workflows: orders in which the five types of hosts are to be fixed, all 120 of them.

How far a defender keeps to its workflow, for each environment by itself, and what it is paid for that.

A *fix* is a Remove or a Restore; its type is that of the host that it is for. Two definitions of a fix that complies:

``first_compromised`` (the default)
    Its type is, of those types that have a host with a session of Red before the action, the one that comes first in
    the workflow; where there is none, every fix complies. User0 does not count: Red cannot be driven from it, so that
    ``user`` would be compromised all the time, and every fix of what comes after it in the workflow a violation.
``fixed_before``
    Every type that comes before it in the workflow was the target of a fix in this episode already.

The *rate* of an episode is the share of its fixes that comply, None before the first one. It is worth
``alpha * rate - beta * (1 - rate)``, and ``-beta / 2`` where there is no fix. The defender is paid the *change* of that
value in each step, so that an episode's payments add up to its value at the end less that of an episode without a fix,
and a step is paid for what it did itself. ``alpha=30, beta=0`` is a bonus of 30 times the rate.
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
    """Knows every workflow, its number, its code for a network, and how far apart two of them are.

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
        """Where each type stands in an order: int64, ``(5,)``, by the indices of types."""
        checked = self.checked(order)
        return np.array([checked.index(name) for name in self.types], np.int64)

    def order_to_onehot(self, order: Sequence[str] | str) -> np.ndarray:
        """The code of an order: float32, ``(25,)``; entry 5 * position + type is 1."""
        code = np.zeros((5, 5), np.float32)
        code[self.positions(order), np.arange(5)] = 1
        return code.reshape(-1)

    def onehot_to_order(self, code: np.ndarray) -> Order:
        """The order that a code stands for.

        Raises:
            WorkflowError: It is the code of none.
        """
        square = np.asarray(code)
        if square.shape != (25,):
            raise WorkflowError(f"a code of shape {square.shape} is of no workflow: expected (25,).")
        order = self.checked([self.types[index] for index in square.reshape(5, 5).argmax(1)])
        if not np.array_equal(self.order_to_onehot(order), square):
            raise WorkflowError("a code of a workflow has one 1 for each position, and is 0 elsewhere.")
        return order

    def kendall_distance(self, one: Sequence[str] | str, other: Sequence[str] | str) -> int:
        """How many of the ten pairs of types stand the other way round: 0 to 10 (Kendall 1938)."""
        return int(self.distances[self.number(one), self.number(other)])

    @cached_property
    def distances(self) -> np.ndarray:
        """Kendall's distance between all orders: int64, ``(120, 120)``, by their numbers."""
        places = np.array([self.positions(order) for order in self.orders])
        first, second = np.array(list(combinations(range(5), 2))).T
        before = (places[:, first] < places[:, second]).astype(np.int64)
        return (before[:, None] != before[None]).sum(-1)


def order_text(order: Sequence[str]) -> str:
    """An order as people read it."""
    return " > ".join(order)


# Compliance


DEFINITIONS = ("first_compromised", "fixed_before")
NOTHING = -1  # the target of an action that is no fix

_TARGETS = np.array([NOTHING if (kind := fix_target(action)) is None else kind for action in range(N_ACTIONS)])


@dataclass(frozen=True)
class EpisodeCompliance:
    """How far an episode kept to its workflow.

    Attributes:
        fixes: How many there were: its coverage.
        compliant: How many of them complied.
    """

    fixes: int
    compliant: int

    @property
    def rate(self) -> float | None:
        """The share of fixes that complied; None without any."""
        return self.compliant / self.fixes if self.fixes else None

    @property
    def rate_or_half(self) -> float:
        """The same, and 0.5 without any fix: not to fix is neither to comply nor to violate."""
        return self.compliant / self.fixes if self.fixes else 0.5


class Compliance:
    """Counts fixes in the present episodes of some environments, all with one workflow.

    Attributes:
        fixes: How many fixes there were in each: int64, ``(n,)``.
        compliant: How many of them complied: int64, ``(n,)``.
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
            n_envs: How many environments.
            order: The workflow.
            definition: Which fixes comply; see :mod:`ragen.cage2.workflow`.
            alignment_alpha: What full compliance is worth.
            alignment_beta: What a full violation costs.
            manager: Knows the workflows; None for a new one.

        Raises:
            ConfigError: The definition is not known.
            WorkflowError: The order is none.
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
        """The rate of each present episode so far; None before its first fix."""
        return [self.of(env_id).rate for env_id in range(self.n_envs)]

    def of(self, env_id: int) -> EpisodeCompliance:
        """How far the present episode of an environment kept to the workflow so far."""
        return EpisodeCompliance(int(self.fixes[env_id]), int(self.compliant[env_id]))

    def values(self) -> np.ndarray:
        """What the present rates are worth: float64, ``(n,)``."""
        rates = self.compliant / np.maximum(self.fixes, 1)
        worth = self._alpha * rates - self._beta * (1 - rates)
        return np.where(self.fixes > 0, worth, -self._beta / 2)

    def step(self, actions: np.ndarray, compromised_before: np.ndarray) -> np.ndarray:
        """Count a step of every environment.

        Args:
            actions: What Blue did: integers below 145, ``(n,)``.
            compromised_before: Whether Red held a session on a host of each type before that: bool, ``(n, 5)``.

        Returns:
            What each is paid: float64, ``(n,)``.

        Raises:
            InputError: A shape or an action is not as expected; nothing was counted.
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
        """End an environment's episode: how far it kept to the workflow; the next one begins with no fix."""
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
        """The first position in the workflow of a type of a set, for each environment; 5 for an empty set."""
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
