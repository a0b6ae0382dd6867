"""BM25 search in the products' texts, with the scores and ranking of the reference's Lucene index.

k1 = 0.9 and b = 0.4; the length of a text is rounded like Lucene's one-byte encoding; terms are scored as 32-bit floats
and summed as 64-bit floats; equal scores are ordered by asin.

No library ranks as Lucene does: with the same terms, of 285 queries whose ranking by the reference is known,
bm25s 0.3.16 ranks 34 equally, tantivy 0.27.0 28, and this module all.
"""

from __future__ import annotations

import math
import re
import sqlite3
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

import numpy as np

from ragen.env.database import Database

K1 = np.float32(0.9)
B = np.float32(0.4)
TOP = 50  # results of a search
MAX_QUERY = 4096  # characters of a query that are used, which limits a search to a millisecond or two


class IndexBuilder:
    """Collects the texts of all documents, then writes the index."""

    def __init__(self) -> None:
        """Start without documents."""
        self._postings: dict[str, array[int]] = defaultdict(lambda: array("i"))  # documents and counts, in turn
        self._lengths: list[int] = []
        self._names: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Add a document; documents are numbered in this order.

        Args:
            name: The name by which documents with equal scores are ordered.
            text: The text to index.
        """
        terms = analyze(text)
        for term, count in Counter(terms).items():
            self._postings[term].extend((len(self._names), count))
        self._lengths.append(len(terms))
        self._names.append(name)

    def write(self, database: sqlite3.Connection) -> None:
        """Write what :class:`Index` reads: for each term, its weight and the ranks and denominators of its products."""
        order = np.array(sorted(range(len(self._names)), key=self._names.__getitem__), dtype="<i4")
        rank = np.argsort(order).astype("<i4")
        count = max(1, sum(length > 0 for length in self._lengths))
        stored = np.array(list(map(stored_length, self._lengths)), dtype="<f4")
        inverse = np.float32(1) / (K1 * ((np.float32(1) - B) + B * stored / np.float32(sum(self._lengths) / count)))
        database.execute("create table terms(term text primary key, weight, ranks, denominators) without rowid")
        database.execute("create table ranking(products)")
        database.execute("insert into ranking values(?)", [order.tobytes()])
        for term, posting in self._postings.items():
            documents, counts = np.array(posting).reshape(-1, 2).T
            weight = math.log(1 + (count - len(counts) + 0.5) / (len(counts) + 0.5))
            denominators = np.float32(1) + counts.astype("<f4") * inverse[documents]
            ranked = np.argsort(rank[documents])
            row = term, weight, rank[documents][ranked].tobytes(), denominators[ranked].tobytes()
            database.execute("insert into terms values(?, ?, ?, ?)", row)


class Index:
    """Finds the products that match a query best."""

    def __init__(self, database: Database) -> None:
        """Read the order of products; the rest is read as it is searched."""
        self._database = database
        self._order = np.frombuffer(database.rows("select products from ranking")[0][0], dtype="<i4")

    def search(self, query: str) -> list[tuple[int, float]]:
        """The best documents with at least one term of the query, and their scores, best first.

        Args:
            query: Any text, of which the first ``MAX_QUERY`` characters are used.
        """
        scores = np.zeros(len(self._order))
        select = "select weight, ranks, denominators from terms where term = ?"
        for term, times in Counter(analyze(query[:MAX_QUERY])).items():
            for weight, ranks, denominators in self._database.rows(select, term):
                weight = np.float32(times) * np.float32(weight)
                scores[np.frombuffer(ranks, "<i4")] += weight - weight / np.frombuffer(denominators, "<f4")
        best = _best(scores.astype("<f4"))
        return [(int(self._order[rank]), float(scores[rank])) for rank in best]


def stored_length(length: int) -> int:
    """A text's length as Lucene stores it in a byte: exact below 40, then rounded down to four significant bits."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)


def _best(scores: np.ndarray) -> Sequence[int]:
    """The indices of the highest scores above zero, best first, equal scores in order."""
    found = np.flatnonzero(scores)
    if len(found) > TOP:
        least = np.partition(scores[found], -TOP)[-TOP]
        found = found[scores[found] >= least]
    return found[np.argsort(-scores[found], kind="stable")][:TOP].tolist()


# Converts text to index terms like the reference's search engine (Anserini 0.22 on Lucene 9.5, English).
#
# Text is split into words by Unicode's rules (UAX #29). A final ``'s`` is removed, letters are lower-cased, stop words
# are dropped, and words of more than two letters are stemmed. The character classes below implement these rules as far
# as shop texts need them: in scripts written without spaces, other than Chinese and Japanese, a word extends from space
# to space.

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())

_LONGEST_TOKEN = 255  # characters; the engine cuts longer words into pieces of this length

_SINGLE = (  # Chinese and hiragana: each character is a word
    "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_NO_LETTERS = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209f\u2150-\u215f\u2460-\u24ff\u2776-\u2793\uff9e\uff9f"
_MARKS = "\u0300-\u036f\u200c\u200d\u20d0-\u20ff\ufe00-\ufe0f\uff9e\uff9f"  # part of the preceding character
_LETTER = rf"(?:(?![{_SINGLE}{_NO_LETTERS}])[^\W\d_][{_MARKS}]*)"
_DIGIT = rf"(?:\d[{_MARKS}]*)"
_BETWEEN_LETTERS = "'\u2018\u2019.:\u00b7\u2024\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"
_BETWEEN_DIGITS = (
    "'\u2018\u2019.,;\u037e\u0589\u060c\u060d\u066c\u07f8\u2024\u2044\ufe10\ufe14\ufe50\ufe52\ufe54"
    "\uff07\uff0c\uff0e\uff1b"
)
_WORD = (
    rf"(?<!_)_*(?:{_LETTER}|{_DIGIT})"
    rf"(?:{_LETTER}|{_DIGIT}|_|(?<=[^\W\d_])[{_BETWEEN_LETTERS}](?={_LETTER})|(?<=\d)[{_BETWEEN_DIGITS}](?={_DIGIT}))*"
)
_PICTOGRAPHS = (  # Extended_Pictographic of Unicode 12.1, as in that version of Lucene
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    "\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    "\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767"
    "\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e"
    "\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a"
    "\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    "\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f"
    "\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fffd"
)
_PICTURE = rf"[{_PICTOGRAPHS}][\ufe0f\U0001f3fb-\U0001f3ff]*"
_FLAG = r"[\U0001f1e6-\U0001f1ff]{2}"
_TOKEN = re.compile(rf"{_WORD}|[{_SINGLE}]|{_PICTURE}(?:\u200d{_PICTURE})*|{_FLAG}")


def analyze(text: str) -> list[str]:
    """The index terms of a text in order, including repetitions."""
    terms = []
    for word in _TOKEN.findall(text):
        if len(word) <= _LONGEST_TOKEN:
            terms.append(_term(word))
        else:
            terms += [_term(word[at : at + _LONGEST_TOKEN]) for at in range(0, len(word), _LONGEST_TOKEN)]
    return [term for term in terms if term]


@lru_cache(maxsize=1 << 16)
def _term(word: str) -> str:
    """The term of a word; empty for a stop word."""
    if len(word) > 2 and word[-1] in "sS" and word[-2] in "'\u2019\uff07":
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else _stem(word)


_STEMMER = sqlite3.connect(":memory:", check_same_thread=False)
_STEMMER.executescript(
    """
    create virtual table words using fts5(
        word, content='', tokenize="porter unicode61 remove_diacritics 0 categories 'L* N* M* S* P* C*'"
    );
    create virtual table stems using fts5vocab(words, row);
    """
)
_stemming = Lock()


def _stem(word: str) -> str:
    """The stem by SQLite's Porter, which has its author's two later changes (``bli``, ``logi``), as Lucene's has."""
    with _stemming:
        _STEMMER.execute("insert into words(words) values('delete-all')")
        _STEMMER.execute("insert into words(rowid, word) values(1, ?)", (word,))
        return next(iter(_STEMMER.execute("select term from stems")), (word,))[0]
