"""Products, goals and search, read from a database in the machine's cache.

A process has one catalogue per configuration, shared by all its environments, and closes it with the last of them.
Products are decoded on access.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ragen.cache import machine_cache
from ragen.env.database import Database, new_database
from ragen.env.webshop.config import Source
from ragen.env.webshop.goals import Goal, GoalTable, goal_of, split_order, split_place
from ragen.env.webshop.records import Record, index_text, read_records
from ragen.env.webshop.search import Index, IndexBuilder
from ragen.errors import ConfigError

_DECODED = 128  # products kept decoded


class Catalogue:
    """The products and goals of a shop.

    Attributes:
        goal_count: Number of goals.
        product: A function that returns the product with a number, which must not be changed.
    """

    def __init__(self, database: Database, limit_goals: int = -1) -> None:
        """Read what was built.

        Args:
            database: The built database.
            limit_goals: Maximum number of goals; -1 for all.
        """
        self._database, self._index = database, Index(database)
        ((every,),) = database.rows("select max(rowid) from goals")
        self.goal_count: int = min(limit_goals, every) if limit_goals >= 0 else every
        self._split = None if self.goal_count == every else split_order(self.goal_count)
        self.product = lru_cache(_DECODED)(partial(_product, database))

    def search(self, query: str) -> list[tuple[int, float]]:
        """The numbers of the products that match a query best, at most 50, best first, and their scores."""
        return self._index.search(query)

    def goal_index(self, seed: int, mode: str | None) -> int:
        """The number of the goal of a seed; see :func:`~ragen.env.webshop.goals.split_place`."""
        place = split_place(self.goal_count, seed, mode)
        return self._goal("split", place)[0] if self._split is None else self._split[place]

    def goal(self, index: int) -> Goal:
        """The goal with this number, from 0 in the shop's order."""
        product, wish, limit = self._goal("product, wish, price_limit", index)
        return goal_of(self.product(product), wish, limit)

    def _goal(self, columns: str, index: int) -> Any:
        return self._database.rows(f"select {columns} from goals where rowid = ?", index + 1)[0]


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
                folder = machine_cache("webshop", source.key(), partial(build_database, source))
                catalogue = Catalogue(Database(folder), limit_goals)
            except FileNotFoundError as error:
                raise ConfigError(f"webshop: a data file is missing: {error}.") from error
            _open[identity] = catalogue
    return catalogue


def _product(database: Database, number: int) -> Record:
    ((record,),) = database.rows("select record from products where rowid = ?", number + 1)
    return Record(**json.loads(record))


def build_database(source: Source, folder: Path) -> None:
    """Read the data files, and write products, index and goals.

    Args:
        source: The data files and options.
        folder: The empty folder to write to.

    Raises:
        ConfigError: A data file has an invalid format.
    """
    index, goals = IndexBuilder(), GoalTable(source.price_seed)
    with new_database(folder) as database:
        database.execute("create table products(record)")
        database.execute("create table goals(product, wish, price_limit, split)")
        for record in read_records(source):
            index.add(record.asin, index_text(record))
            record.price = goals.add(record)
            database.execute("insert into products values(?)", [json.dumps(vars(record))])
        index.write(database)
        rows = goals.rows()
        if not rows:
            where = f"{source.attributes} (attr_path)"
            raise ConfigError(f"webshop: no product of {source.products} has an instruction in {where}.")
        drawn = zip(rows, split_order(len(rows)), strict=True)
        database.executemany("insert into goals values(?, ?, ?, ?)", ((*row, split) for row, split in drawn))
