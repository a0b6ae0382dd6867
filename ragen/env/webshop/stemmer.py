"""Porter's stemmer (Program 14, 1980), with its author's two later changes, as in Lucene.

``bli`` becomes ``ble`` (formerly ``abli`` became ``able``), and ``logi`` becomes ``log``.

A stem's measure *m* counts how often a vowel is followed by a consonant. A word's shape is its letters with ``v`` for
each vowel and ``c`` for each consonant; ``y`` after a consonant is a vowel. *m* is the number of ``vc`` in the shape.
"""

from __future__ import annotations

import re

_PLURALS = {"sses": "ss", "ies": "i", "ss": "ss", "s": ""}
_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = "al ance ence er ic able ible ant ement ment ent (?<=[st])ion ou ism ate iti ous ive ize"
_STEPS = [
    (re.compile(f"(.*?)({'|'.join(endings)})"), endings, least)  # the shortest stem leaves the longest ending
    for endings, least in ((_PLURALS, 0), (_STEP_2, 1), (_STEP_3, 1), (dict.fromkeys(_STEP_4.split(), ""), 2))
]
"""Endings, what replaces them, and the least measure of the stem before them."""


def stem(word: str) -> str:
    """The stem of a lower-case word. Letters other than a, e, i, o, u and y count as consonants."""
    if len(word) <= 2:
        return word
    plurals, *steps = _STEPS
    word = _without_past(_replaced(word, *plurals))
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    for step in steps:
        word = _replaced(word, *step)
    if word.endswith("e") and _measure(word) + (not _is_short(word[:-1])) > 1:
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _shape(word: str) -> str:
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape[-1:] == "c") else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _is_short(word: str) -> bool:
    """Whether it ends in consonant, vowel, consonant, the last one not w, x or y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _replaced(word: str, pattern: re.Pattern[str], endings: dict[str, str], least: int) -> str:
    found = pattern.fullmatch(word)
    return found[1] + endings.get(found[2], "") if found and _measure(found[1]) >= least else word


def _without_past(word: str) -> str:
    found = re.fullmatch("(.*?)(eed|ed|ing)", word)
    if not found:
        return word
    rest, ending = found.groups()
    if ending == "eed":
        return word[:-1] if _measure(rest) > 0 else word
    shape = _shape(rest)
    if "v" not in shape:
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-2:-1] == rest[-1] and shape[-1] == "c":
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _is_short(rest) else rest
