"""Search backends: a local index in SQLite's FTS5, or a retrieval server.

An index is built once per machine and then only read. Processes map it into memory, so the system keeps one copy.
Scores are BM25's. The answers of a retrieval server may change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen.cache import machine_cache
from ragen.env.database import Database, new_database
from ragen.env.resources import Lease, worker_resource
from ragen.env.rows import RowSource, json_objects
from ragen.env.search.world import Hit, Passage, generate, generator_digest
from ragen.errors import ConfigError, SearchError

FORMAT = 1
"""Version of the indexes; part of the cache key."""

MOST_WORDS = 64
"""Maximum number of words in a query; further words are ignored."""


def words_of(query: str) -> list[str]:
    """The words of a query, in lower case."""
    return re.findall(r"\w+", query.lower())[:MOST_WORDS]


# Corpora


def passages_of(path: str) -> Iterator[Passage]:
    """The passages of a JSONL file: ``title`` and ``text``, or Search-R1's ``contents`` with the title on line one.

    Raises:
        ConfigError: The file cannot be read, or a line has neither format.
    """
    for number, row in enumerate(json_objects(RowSource("search", "corpus", path)), 1):
        yield passage_of(row, f"row {number} of {path}")


def passage_of(row: Mapping[str, Any], where: str) -> Passage:
    """The passage in a row of a known format.

    Raises:
        ConfigError: The format is unknown.
    """
    text = next((row[key] for key in ("text", "contents", "content") if isinstance(row.get(key), str)), None)
    if text is None:
        raise ConfigError(f"search: {where} needs a text (text, contents or content); it has {sorted(row) or 'none'}.")
    title = row.get("title")
    if title is None and "contents" in row and "\n" in text:
        title, _, text = text.partition("\n")
        title = title.strip('"')
    return Passage(str(title or ""), text)


# Indexes of this machine


def _clean(passage: Passage) -> Passage:
    """The passage without characters that cannot be encoded."""
    return Passage(*(part.encode("utf-8", "replace").decode() for part in passage))


class SqliteIndex(Database):
    """A read-only index of SQLite's FTS5; any thread may search it."""

    def search(self, query: str, count: int) -> list[Hit]:
        """The best passages by BM25; of equal ones the one that stands first in the corpus."""
        terms = " OR ".join(f'"{word}"' for word in words_of(query))
        if not terms:
            return []
        select = (
            "select title, text, rowid, -bm25(passages) from passages where passages match ? "
            "order by bm25(passages), rowid limit ?"
        )
        rows = self.rows(select, terms, count)
        return [Hit(Passage(title, text), str(number - 1), score) for title, text, number, score in rows]


def hold_index(config: Any) -> Lease[Any]:
    """A lease of this process's backend; the first process on the machine that needs a local index builds it.

    Args:
        config: A :class:`~ragen.env.search.config.SearchEnvConfig`.

    Raises:
        ConfigError: The corpus cannot be read, or is empty.
    """
    if config.backend == "mock":
        return worker_resource(("search", "mock"), Placeholders, lambda held: None)
    if config.backend == "http":
        where = config.retrieval_server_url, config.retrieval_timeout
        return worker_resource(("search", *where), lambda: RetrievalServer(*where), RetrievalServer.close)
    corpus, world = config.corpus, (config.world_seed, config.entities)
    key: dict[str, Any] = {"format": FORMAT, "backend": "fts5"}
    if corpus is None:
        key["world"] = [*world, generator_digest()]
    else:
        info = Path(corpus).stat()
        key["corpus"] = [corpus, info.st_size, info.st_mtime_ns]

    def fill(folder: Path) -> None:
        passages = generate(*world).passages if corpus is None else passages_of(corpus)
        with new_database(folder) as database:
            database.execute("create virtual table passages using fts5(title, text, tokenize='porter unicode61')")
            database.executemany("insert into passages values(?, ?)", map(_clean, passages))
            database.execute("insert into passages(passages) values('optimize')")
            if not database.execute("select rowid from passages limit 1").fetchone():
                raise ConfigError(f"search: env_config key corpus={corpus!r}: the file contains no passages.")

    folder = machine_cache("search", key, fill)
    return worker_resource(("search", str(folder)), lambda: SqliteIndex(folder), lambda held: held.close())


# A retrieval server


class RetrievalServer:
    """A retrieval server like RAGEN's or Search-R1's: ``/retrieve`` receives a query with the keys of both."""

    def __init__(self, url: str, timeout: float) -> None:
        """Set the address and the time-out in seconds; nothing is requested."""
        import httpx

        url = url.rstrip("/")
        self._url = url if url.endswith("/retrieve") else f"{url}/retrieve"
        self._client = httpx.Client(timeout=timeout)  # follows no redirects: only this address is contacted
        self._failures = httpx.HTTPError, httpx.InvalidURL

    def search(self, query: str, count: int) -> list[Hit]:
        """The server's results.

        Raises:
            SearchError: The server cannot be reached, or its reply cannot be read.
        """
        plain = query.encode("utf-8", "replace").decode()
        asked = {"query": plain, "top_k": count, "queries": [plain], "topk": count, "return_scores": True}
        try:
            reply = self._client.post(self._url, json=asked).raise_for_status()
            return [_hit(row, number) for number, row in enumerate(_rows(reply.json())[:count], 1)]
        except self._failures as error:
            raise SearchError(f"search: the retrieval server {self._url} did not answer: {error!r}.") from error
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise SearchError(f"search: the reply of {self._url} cannot be read: {error!r}.") from error

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


def _rows(reply: Any) -> Sequence[Any]:
    """The results in a reply: RAGEN's ``results``, or Search-R1's ``result``, a list for each query."""
    if "results" in reply:
        found: Sequence[Any] = reply["results"]
        return found
    asked: Sequence[Any] = reply["result"][0]
    return asked


def _hit(row: Any, number: int) -> Hit:
    """A result with the server's id and score; Search-R1's passage is under ``document``."""
    document = row.get("document", row)
    name, score = document.get("id", f"doc_{number}"), row.get("score", 0.0)
    return Hit(passage_of(document, "a passage"), str(name), float(score))


# RAGEN's mock retriever


class Placeholders:
    """RAGEN 2026's ``MockRetrievalClient``: returns two placeholders that repeat the query.

    It needs no corpus and no server, for trying out a configuration.
    """

    def search(self, query: str, count: int) -> list[Hit]:
        """Both placeholders, whatever the count."""
        first = f"Mock search result for query: '{query}'. This is a placeholder document for testing purposes."
        second = f"Another mock document related to: '{query}'. Replace with real retrieval server for actual training."
        return [Hit(Passage("", first), "mock_1", 0.9), Hit(Passage("", second), "mock_2", 0.75)]
