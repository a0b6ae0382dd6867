"""Read-only SQLite files in the machine's cache: mapped into memory, so all processes share one copy."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import finalize

_FILE = "index.db"
_MAPPED = 16 * 2**30  # bytes


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
        self._uri = f"file:{quote(str(folder / _FILE))}?mode=ro&immutable=1"
        self._of_thread = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self.close = finalize(self, _close, self._opened)
        self.rows("select 1")

    def rows(self, query: str, *values: Any) -> list[Any]:
        """The rows that a query selects."""
        if not hasattr(self._of_thread, "connection"):  # one a thread: two that share one mix up their rows
            connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)  # any thread may close it
            connection.execute(f"pragma mmap_size={_MAPPED}")
            self._opened.append(connection)
            self._of_thread.connection = connection
        return self._of_thread.connection.execute(query, values).fetchall()  # type: ignore[no-any-return]


def _close(connections: list[sqlite3.Connection]) -> None:
    for connection in connections:
        connection.close()
