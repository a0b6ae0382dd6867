"""Read-only SQLite files in the machine's cache: mapped into memory, so all processes share one copy."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

_FILE = "index.db"


@contextmanager
def new_database(folder: Path) -> Iterator[sqlite3.Connection]:
    """Write the database of a folder that :func:`ragen.cache.machine_cache` fills."""
    with closing(sqlite3.connect(folder / _FILE)) as connection:
        connection.execute("pragma journal_mode=off")
        yield connection
        connection.commit()


class Database:
    """The database of a folder; any thread may read it."""

    def __init__(self, folder: Path) -> None:
        """Open it."""
        uri = f"file:{quote(str(folder / _FILE))}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._lock = threading.Lock()  # two threads that read at a time mix up their rows
        self.close = self._connection.close
        self.rows("pragma mmap_size=17179869184")  # 16 GiB

    def rows(self, query: str, *values: Any) -> list[Any]:
        """The rows that a query selects."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()
