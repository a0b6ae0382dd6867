"""Converts text to index terms like the reference's search engine (Anserini 0.22 on Lucene 9.5, English).

Text is split into words by Unicode's rules (UAX #29). A final ``'s`` is removed, letters are lower-cased, stop words
are dropped, and words of more than two letters are stemmed. The character classes below implement these rules as far as
shop texts need them: in scripts written without spaces, other than Chinese and Japanese, a word extends from space to
space.
"""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache
from threading import Lock

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
