"""Products, goals and search, read from memory-mapped files.

A process has one catalogue per configuration, shared by all its environments, and closes it with the last of them.
Products are decoded on access.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable
from functools import lru_cache, partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from ragen.cache import machine_cache
from ragen.env.webshop.build import build_store
from ragen.env.webshop.goals import Goal, human_goal, made_up_goal, split_order, split_place
from ragen.env.webshop.records import Record
from ragen.env.webshop.search import Index
from ragen.env.webshop.source import Source
from ragen.env.webshop.store import Store
from ragen.errors import ConfigError

_DECODED = 128  # products kept decoded


class Card(NamedTuple):
    """A product as shown on a page of results."""

    asin: str
    title: str
    price_text: str


class Catalogue:
    """The products and goals of a shop.

    Attributes:
        product_count: Number of products.
        goal_count: Number of goals.
    """

    def __init__(self, store: Store, limit_goals: int = -1) -> None:
        """Read what was built.

        Args:
            store: The built files.
            limit_goals: Maximum number of goals; -1 for all.
        """
        self._store = store
        self._index = Index(store)
        self._prices = store.array("price")
        self._goals = [store.array(f"goal.{column}") for column in ("product", "wish", "limit")]
        self._make_goal = human_goal if store.meta["human"] else made_up_goal
        self.product_count: int = store.meta["products"]
        every = store.meta["goals"]
        self.goal_count: int = min(limit_goals, every) if limit_goals >= 0 else every
        self._split = store.array("split") if self.goal_count == every else split_order(self.goal_count)
        self._record = lru_cache(_DECODED)(partial(_read_record, store))

    def product(self, number: int) -> Record:
        """The product with this number, from 0 in file order. It is shared and must not be changed."""
        return self._record(number)

    def card(self, number: int) -> Card:
        """A product as shown on a page of results."""
        return Card(*json.loads(self._store.text("cards", number)))

    def price(self, number: int) -> float:
        """The price of a product in dollars."""
        return float(self._prices[number])

    def search(self, query: str) -> tuple[int, ...]:
        """The numbers of the products that match a query best, at most 50, best first."""
        return tuple(number for number, _ in self._index.search(query))

    def scores(self, query: str) -> list[tuple[int, float]]:
        """The results of :meth:`search` with their scores."""
        return self._index.search(query)

    def goal_index(self, seed: int, mode: str | None) -> int:
        """The number of the goal of a seed; see :func:`~ragen.env.webshop.goals.split_place`."""
        return int(self._split[split_place(self.goal_count, seed, mode)])

    def goal(self, index: int) -> Goal:
        """The goal with this number, from 0 in the shop's order."""
        product, wish, limit = (column[index].item() for column in self._goals)
        return self._make_goal(self.product(product), wish, limit)


_open: WeakValueDictionary[Hashable, Catalogue] = WeakValueDictionary()
_open_lock = threading.Lock()


def open_catalogue(source: Source, limit_goals: int = -1) -> Catalogue:
    """The catalogue of a source; it is built and opened unless this process already has it open.

    Args:
        source: The data files and options.
        limit_goals: Maximum number of goals; -1 for all.

    Raises:
        ConfigError: A data file is missing or has an invalid format.
        CacheError: The built files cannot be written.
    """
    identity = (source, limit_goals)
    with _open_lock:
        catalogue = _open.get(identity)
        if catalogue is None:
            try:
                folder = machine_cache("webshop", source.key(), partial(build_store, source))
                catalogue = Catalogue(Store(folder), limit_goals)
            except FileNotFoundError as error:
                raise ConfigError(f"webshop: a data file is missing: {error}.") from error
            _open[identity] = catalogue
    return catalogue


def _read_record(store: Store, number: int) -> Record:
    return Record(**json.loads(store.text("records", number).decode("utf-8", "surrogatepass")))
