"""BM25 search in the products' texts, with the scores and ranking of the reference's Lucene index.

k1 = 0.9 and b = 0.4; the length of a text is rounded like Lucene's one-byte encoding; terms are scored as 32-bit floats
and summed as 64-bit floats; equal scores are ordered by asin. The arrays are in a
:class:`~ragen.env.webshop.store.Store`, so all processes on the machine share one copy.

No library ranks as Lucene does: with the same terms, of 285 queries whose ranking by the reference is known,
bm25s 0.3.16 ranks 34 equally, tantivy 0.27.0 28, and this module all.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ragen.env.webshop.analyzer import analyze
from ragen.env.webshop.store import Store, StoreWriter

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

    def write(self, writer: StoreWriter) -> None:
        """Write the arrays that :class:`Index` reads."""
        order = np.array(sorted(range(len(self._names)), key=self._names.__getitem__), dtype="<i4")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order), dtype="<i4")
        terms, ranks = np.array(self._terms, dtype="<i4"), rank[np.array(self._documents, dtype="<i4")]
        keys = np.array([term_key(term) for term in self._term_ids], dtype="<u8")
        by_key = np.argsort(keys)
        place = np.empty(len(keys), dtype="<i4")
        place[by_key] = np.arange(len(keys), dtype="<i4")
        terms = place[terms]
        by_term = np.lexsort((ranks, terms))
        frequency = np.bincount(terms, minlength=len(keys))
        denominators = self._denominators(np.array(self._documents, dtype="<i4"))
        writer.add_array("order", order)
        writer.add_array("keys", keys[by_key])
        writer.add_array("starts", np.concatenate([[0], np.cumsum(frequency)]).astype("<i8"))
        writer.add_array("idf", _idf(frequency, self._filled()))
        writer.add_array("ranks", ranks[by_term])
        writer.add_array("denominators", denominators[by_term])

    def _filled(self) -> int:
        """Number of documents with at least one term."""
        return max(1, sum(length > 0 for length in self._lengths))

    def _denominators(self, documents: np.ndarray) -> np.ndarray:
        """``1 + count * inverse norm`` of each posting."""
        mean = np.float32(sum(self._lengths) / self._filled())
        stored = np.array([stored_length(length) for length in self._lengths], dtype="<f4")
        inverse = np.float32(1) / (K1 * ((np.float32(1) - B) + B * stored / mean))
        return np.float32(1) + np.array(self._counts, dtype="<f4") * inverse[documents]


class Index:
    """Finds the products that match a query best."""

    def __init__(self, store: Store) -> None:
        """Read the arrays of a store without copying them."""
        self._order, self._keys = store.array("order"), store.array("keys")
        self._starts, self._idf = store.array("starts"), store.array("idf")
        self._ranks, self._denominators = store.array("ranks"), store.array("denominators")

    def search(self, query: str, count: int = TOP) -> list[tuple[int, float]]:
        """The best documents with at least one term of the query, and their scores, best first.

        Args:
            query: Any text, of which the first ``MAX_QUERY`` characters are used.
            count: Maximum number of documents.
        """
        weights = Counter(analyze(query[:MAX_QUERY]))
        keys = np.fromiter(map(term_key, weights), dtype="<u8", count=len(weights))
        scores = np.zeros(len(self._order))
        for place, key, weight in zip(np.searchsorted(self._keys, keys).tolist(), keys, weights.values(), strict=True):
            if place < len(self._keys) and self._keys[place] == key:
                self._add_scores(scores, place, np.float32(weight))
        best = _best(scores.astype("<f4"), count)
        return [(int(self._order[rank]), float(scores[rank])) for rank in best]

    def _add_scores(self, scores: np.ndarray, term: int, count: np.float32) -> None:
        here = slice(int(self._starts[term]), int(self._starts[term + 1]))
        weight = count * self._idf[term]
        scores[self._ranks[here]] += weight - weight / self._denominators[here]


def term_key(term: str) -> int:
    """A 64-bit hash of a term. Among a million terms, the probability of a collision is 3 in 100 million."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def stored_length(length: int) -> int:
    """A text's length as Lucene stores it in a byte: exact below 40, then rounded down to four significant bits."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)


def _idf(frequency: np.ndarray, count: int) -> np.ndarray:
    return np.array([math.log(1 + (count - df + 0.5) / (df + 0.5)) for df in frequency.tolist()], dtype="<f4")


def _best(scores: np.ndarray, count: int) -> Sequence[int]:
    """The indices of the highest scores above zero, best first, equal scores in order."""
    found = np.flatnonzero(scores)
    if len(found) > count:
        least = np.partition(scores[found], len(found) - count)[len(found) - count]
        found = found[scores[found] >= least]
    return found[np.argsort(-scores[found], kind="stable")][:count].tolist()
