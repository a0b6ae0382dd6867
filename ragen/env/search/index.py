"""Where passages are found: an index of this machine, in SQLite's FTS5 or in Tantivy, or a retrieval server.

An index is built once for all processes of a machine and never written to again; the processes map it, so that the
system keeps one copy in memory. Its scores are BM25's. The answers of a retrieval server may change.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from ragen.env.search.world import Hit, Passage, generate, generator_digest
from ragen.errors import ConfigError, SearchError
from ragen.extras import needs
from ragen.resources import Lease, machine_cache, worker_resource

FORMAT = 1
"""Of the indexes; another one builds them anew."""

MOST_WORDS = 64
"""Words of a query that are looked for; the rest is left out."""

LARGEST_REPLY = 16 * 2**20
"""Bytes of a server's reply that are read."""

_MAPPED = 16 * 2**30
_TANTIVY_HEAP = 64 * 2**20


class Index(Protocol):
    """What answers queries."""

    def search(self, query: str, count: int) -> list[Hit]:
        """The best passages, the best first."""

    def close(self) -> None:
        """Give back what it holds."""


def words_of(query: str) -> list[str]:
    """The words of a query, in lower case."""
    return re.findall(r"\w+", query.lower())[:MOST_WORDS]


# Corpora


def passages_of(path: str) -> Iterator[Passage]:
    """The passages of a JSONL file: ``title`` and ``text``, or ``contents`` as Search-R1 has it, the title on line one.

    Raises:
        ConfigError: It cannot be read, or a line is of neither form.
    """
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield passage_of(json.loads(line), f"line {number} of {path}")
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"search: env_config key corpus={path!r}: not readable as JSON lines: {error}.") from error


def passage_of(row: Any, where: str) -> Passage:
    """A passage in one of the forms that are known.

    Raises:
        ConfigError: It is in none.
    """
    row = row if isinstance(row, dict) else {}
    text = next((row[key] for key in ("text", "contents", "content") if isinstance(row.get(key), str)), None)
    if text is None:
        raise ConfigError(f"search: {where} needs a text (text, contents or content); it has {sorted(row) or 'none'}.")
    title = row.get("title")
    if title is None and "contents" in row and "\n" in text:
        title, _, text = text.partition("\n")
        title = title.strip('"')
    return Passage(str(title or ""), text)


# Indexes of this machine


def build_sqlite(folder: Path, passages: Iterable[Passage]) -> None:
    """Fill a folder with an index in SQLite's FTS5, with Porter's stemmer."""
    with closing(sqlite3.connect(folder / "index.db")) as database:
        database.execute("pragma journal_mode=off")
        database.execute("create virtual table passages using fts5(title, text, tokenize='porter unicode61')")
        database.executemany("insert into passages values(?, ?)", map(_clean, passages))
        database.execute("insert into passages(passages) values('optimize')")
        database.commit()


def _clean(passage: Passage) -> Passage:
    """What any encoding can hold."""
    return Passage(*(part.encode("utf-8", "replace").decode() for part in passage))


class SqliteIndex:
    """An index of SQLite's FTS5, opened for reading alone; any thread may search it."""

    def __init__(self, folder: Path) -> None:
        """Open it."""
        self._uri = f"file:{quote(str(folder / 'index.db'))}?mode=ro&immutable=1"
        self._of_thread = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._connection()

    def _connection(self) -> sqlite3.Connection:
        """The thread's own: rows of a connection that two threads use at the same time are mixed up."""
        if not hasattr(self._of_thread, "connection"):
            connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)  # any thread may close it
            connection.execute(f"pragma mmap_size={_MAPPED}")
            self._opened.append(connection)
            self._of_thread.connection = connection
        return self._of_thread.connection  # type: ignore[no-any-return]

    def search(self, query: str, count: int) -> list[Hit]:
        """The best passages by BM25; of equal ones the one that stands first in the corpus."""
        terms = " OR ".join(f'"{word}"' for word in words_of(query))
        if not terms:
            return []
        select = (
            "select title, text, rowid, -bm25(passages) from passages where passages match ? "
            "order by bm25(passages), rowid limit ?"
        )
        rows = self._connection().execute(select, (terms, count))
        return [Hit(Passage(title, text), str(number - 1), score) for title, text, number, score in rows]

    def close(self) -> None:
        """Close the file."""
        for connection in self._opened:
            connection.close()


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    for name in ("title", "text"):
        builder.add_text_field(name, stored=True, tokenizer_name="en_stem")
    builder.add_unsigned_field("number", stored=True)
    return builder.build()


def build_tantivy(folder: Path, passages: Iterable[Passage]) -> None:
    """Fill a folder with an index of Tantivy."""
    with needs("search", "an index of Tantivy"):
        import tantivy
    writer = tantivy.Index(_schema(tantivy), path=str(folder)).writer(heap_size=_TANTIVY_HEAP, num_threads=1)
    for number, passage in enumerate(map(_clean, passages)):
        writer.add_document(tantivy.Document(title=passage.title, text=passage.text, number=number))
    writer.commit()
    writer.wait_merging_threads()


class TantivyIndex:
    """An index of Tantivy, opened for reading alone."""

    def __init__(self, folder: Path) -> None:
        """Open it."""
        with needs("search", "an index of Tantivy"):
            import tantivy
        self._index: Any = tantivy.Index.open(str(folder))
        self._searcher = self._index.searcher()

    def search(self, query: str, count: int) -> list[Hit]:
        """The best passages by BM25; of equal ones the one that stands first in the corpus."""
        words = words_of(query)
        if not words:
            return []
        parsed = self._index.parse_query(" ".join(f'"{word}"' for word in words), ["title", "text"])
        found = [
            (-score, document["number"][0], Passage(document["title"][0], document["text"][0]))
            for score, address in self._searcher.search(parsed, count).hits
            for document in [self._searcher.doc(address)]
        ]
        return [Hit(passage, str(number), -score) for score, number, passage in sorted(found)]

    def close(self) -> None:
        """Let go of its files."""
        self._index = self._searcher = None


_BACKENDS: dict[str, tuple[Callable[[Path, Iterable[Passage]], None], Callable[[Path], Index]]] = {
    "fts5": (build_sqlite, SqliteIndex),
    "tantivy": (build_tantivy, TantivyIndex),
}


def hold_index(backend: str, corpus: str | None, world: tuple[int, int]) -> Lease[Index]:
    """This process's hold on the index of a corpus, which the first process of the machine builds.

    Args:
        backend: ``"fts5"`` or ``"tantivy"``.
        corpus: A JSONL file; None takes the world's passages.
        world: Seed and entities of the world, which is generated where there is no corpus and no index of it yet.

    Raises:
        ConfigError: The corpus cannot be read, or has no passage.
        MissingExtraError: The backend's package is not installed.
    """
    build, index = _BACKENDS[backend]
    key: dict[str, Any] = {"format": FORMAT, "backend": backend}
    if corpus is None:
        key["world"] = [*world, generator_digest()]
    else:
        info = Path(corpus).stat()
        key["corpus"] = [corpus, info.st_size, info.st_mtime_ns]

    def fill(folder: Path) -> None:
        passages = generate(*world).passages if corpus is None else passages_of(corpus)
        build(folder, _some(passages, corpus))

    folder = machine_cache("search", key, fill)
    return worker_resource(("search", str(folder)), lambda: index(folder), lambda held: held.close())


def _some(passages: Iterable[Passage], corpus: str | None) -> Iterator[Passage]:
    count = 0
    for passage in passages:
        count += 1
        yield passage
    if not count:
        raise ConfigError(f"search: env_config key corpus={corpus!r}: there are no passages in it.")


# A retrieval server


class Server:
    """A retrieval server as RAGEN or Search-R1 run one: a query goes to ``/retrieve``, in the keys of both."""

    def __init__(self, url: str, timeout: float) -> None:
        """Take its address and the seconds to wait for a reply."""
        url = url.rstrip("/")
        self._url = url if url.endswith("/retrieve") else f"{url}/retrieve"
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirects)

    def search(self, query: str, count: int) -> list[Hit]:
        """What the server finds.

        Raises:
            SearchError: It cannot be reached, or its reply cannot be read.
        """
        plain = query.encode("utf-8", "replace").decode()
        asked = {"query": plain, "top_k": count, "queries": [plain], "topk": count, "return_scores": True}
        request = urllib.request.Request(
            self._url, json.dumps(asked).encode(), {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as reply:
                body = reply.read(LARGEST_REPLY + 1)
        except (OSError, ValueError) as error:  # URLError and HTTPError among them
            raise SearchError(f"search: the retrieval server {self._url} did not answer: {error}.") from error
        if len(body) > LARGEST_REPLY:
            raise SearchError(f"search: the retrieval server {self._url} sent more than {LARGEST_REPLY // 2**20} MiB.")
        try:
            return [_hit(row, number) for number, row in enumerate(_rows(json.loads(body))[:count], 1)]
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise SearchError(f"search: the reply of {self._url} cannot be read: {error!r}.") from error

    def close(self) -> None:
        """Nothing is held."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The address is the user's to choose."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: the redirect's own code becomes the error."""


def _rows(reply: Any) -> Sequence[Any]:
    """The passages of a reply: RAGEN's ``results``, or Search-R1's ``result``, a list for each query."""
    if "results" in reply:
        found: Sequence[Any] = reply["results"]
        return found
    asked: Sequence[Any] = reply["result"][0]
    return asked


def _hit(row: Any, number: int) -> Hit:
    """A row with what a server calls its passage, and its score; Search-R1's passage is in its ``document``."""
    document = row.get("document", row)
    name, score = document.get("id", f"doc_{number}"), row.get("score", 0.0)
    return Hit(passage_of(document, "a passage"), str(name), float(score))


# RAGEN's mock retriever


class Placeholders:
    """Finds two documents for any query, which say nothing but the query: RAGEN 2026's ``MockRetrievalClient``.

    What it answers follows from the query alone, without a corpus or a server: for trying out a configuration.
    """

    def search(self, query: str, count: int) -> list[Hit]:
        """Both of them, however many are wanted."""
        first = f"Mock search result for query: '{query}'. This is a placeholder document for testing purposes."
        second = f"Another mock document related to: '{query}'. Replace with real retrieval server for actual training."
        return [Hit(Passage("", first), "mock_1", 0.9), Hit(Passage("", second), "mock_2", 0.75)]

    def close(self) -> None:
        """Nothing is held."""
