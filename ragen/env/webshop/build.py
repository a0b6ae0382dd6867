"""Builds the database of a catalogue from data files."""

from __future__ import annotations

import json
from pathlib import Path

from ragen.env.database import new_database
from ragen.env.webshop.goals import GoalTable, split_order
from ragen.env.webshop.records import index_text, read_records
from ragen.env.webshop.search import IndexBuilder
from ragen.env.webshop.source import Source
from ragen.errors import ConfigError


def build_database(source: Source, folder: Path) -> None:
    """Read the data files, and write products, index and goals.

    Args:
        source: The data files and options.
        folder: The empty folder to write to.

    Raises:
        ConfigError: A data file has an invalid format.
    """
    index, goals = IndexBuilder(), GoalTable(source.price_seed, human=source.instructions is not None)
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
            raise ConfigError(f"webshop: no product of {source.products} has an instruction in {_where(source)}.")
        drawn = zip(rows, split_order(len(rows)), strict=True)
        database.executemany("insert into goals values(?, ?, ?, ?)", ((*row, split) for row, split in drawn))


def _where(source: Source) -> str:
    return f"{source.instructions} (human_attr_path)" if source.instructions else f"{source.attributes} (attr_path)"
