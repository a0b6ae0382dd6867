"""Goals: prices, price limits, instructions, and the goal of each seed.

All draws are from one ``random.Random(price_seed)``, in the reference's order: first a price for each product with a
price range, then a limit for each instruction. The reference draws both from the unseeded global generator.
"""

from __future__ import annotations

import math
import random
from itertools import islice, product
from typing import NamedTuple

from ragen.env.webshop.records import Record

NO_LIMIT = 1_000_000.0  # dollars; means that a goal has no price limit

_SHUFFLE_SEED = 233  # of the shop's order of goals
_SPLIT_SEED = 42  # of their assignment to modes and seeds
_LIMITS = tuple(10.0 * step for step in range(1, 100))  # dollars
_LIMITS_IN_REACH = 4


class Goal(NamedTuple):
    """A product to buy.

    Attributes:
        product: The product from which the goal was made.
        instruction: The text on the pages.
        attributes: The required attributes.
        options: The required options: pairs of name and value.
        price_upper: The maximum price in dollars.
    """

    product: Record
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_upper: float


class GoalTable:
    """Draws prices and limits, and lists all goals as a product's number and the number of its wish."""

    def __init__(self, price_seed: int) -> None:
        """Seed the generator."""
        self._random = random.Random(price_seed)
        self._random.getrandbits(32)  # the reference draws one number before the first price, as its goldens show
        self._products = 0
        self._wished: list[tuple[int, float, int]] = []  # products with an instruction, their prices and wishes

    def add(self, record: Record) -> float:
        """Add the next product of the catalogue; returns its price."""
        prices, options = record.prices, record.options.values()
        price = prices[0] if len(prices) == 1 else self._random.uniform(*prices)
        if record.instruction is not None:
            self._wished.append((self._products, price, math.prod(map(len, options))))
        self._products += 1
        return price

    def rows(self) -> list[tuple[int, int, float]]:
        """Draw the limits; returns the product, the wish and the limit of each goal, in the shop's order."""
        rows: list[tuple[int, int, float]] = []
        for number, price, wishes in self._wished:
            limit = self._draw_limit(price)
            rows += [(number, wish, limit) for wish in range(wishes)]
        return [rows[number] for number in shuffled(len(rows), _SHUFFLE_SEED)]

    def _draw_limit(self, price: float) -> float:
        reach = [limit for limit in _LIMITS if limit > price][:_LIMITS_IN_REACH]
        return max(self._random.sample(reach, 2)) if len(reach) >= 2 else NO_LIMIT


def shuffled(count: int, seed: int) -> list[int]:
    """The numbers from 0 to ``count - 1``, shuffled with a seed."""
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    return numbers


def split_order(count: int) -> list[int]:
    """The goals in the order to which :func:`split_place` refers."""
    return shuffled(count, _SPLIT_SEED)


def split_place(count: int, seed: int, mode: str | None) -> int:
    """The index of a seed's goal in the order of the split.

    With more than 1,500 goals, this is the reference's split: 500 for testing, 1,000 for validation, the rest for
    training. With fewer goals, where the reference fails, a tenth is for testing and a fifth for validation; with fewer
    than ten, every mode has all goals.

    Args:
        count: Number of goals.
        seed: Any seed from 0; it wraps around within its part.
        mode: ``"test"``, ``"val"``, or anything else for training.
    """
    test, val = (500, 1000) if count > 1500 else (count // 10, count // 5)
    if test == 0:
        return seed % count
    if mode == "test":
        return seed % test
    if mode == "val":
        return seed % val + test
    return seed % (count - test - val) + test + val


def goal_of(record: Record, wish: int, limit: float) -> Goal:
    """The goal for a product with one combination of its options.

    Args:
        record: The product.
        wish: The index of the combination, in the order of ``itertools.product`` over the sorted option names.
        limit: The price limit in dollars.
    """
    names = sorted(record.options)
    chosen = next(islice(product(*(record.options[name] for name in names)), wish, None))
    options = tuple(zip(names, chosen, strict=True))
    text = str(record.instruction)
    if options:
        text += f" with {', and '.join(f'{name}: {value}' for name, value in options)}"
    if limit != NO_LIMIT:
        text += f", and price lower than {limit:.2f} dollars"
    return Goal(record, text, tuple(record.instruction_attributes), options, limit)
