"""Workflows: orders in which the five types of hosts are to be fixed, all 120 of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations, permutations

import numpy as np

from ragen.cage2.layout import WORKFLOW_TYPES
from ragen.errors import WorkflowError

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
