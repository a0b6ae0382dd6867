"""Porter's stemmer (Program 14, 1980), with its author's two later changes, as in Lucene.

``bli`` becomes ``ble`` (formerly ``abli`` became ``able``), and ``logi`` becomes ``log``.

A stem's measure *m* counts how often a vowel is followed by a consonant. A word's shape is its letters with ``v`` for
each vowel and ``c`` for each consonant; ``y`` after a consonant is a vowel. *m* is the number of ``vc`` in the shape.
"""

from __future__ import annotations

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism", "ate",
    "iti", "ous", "ive", "ize",
)  # fmt: skip
_KEPT_IN_STEP_4 = {"sion": "s", "tion": "t"}


def stem(word: str) -> str:
    """The stem of a lower-case word. Letters other than a, e, i, o, u and y count as consonants."""
    if len(word) <= 2:
        return word
    word = _without_past(_without_plural(word))
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    for endings in (_STEP_2, _STEP_3):
        word = _replaced(word, endings)
    return _without_final_e(_without_ending(word))


def _shape(word: str) -> str:
    shape = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if is_vowel else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _is_short(word: str) -> bool:
    """Whether it ends in consonant, vowel, consonant, the last one not w, x or y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    rest = next((word[: -len(ending)] for ending in ("ed", "ing") if word.endswith(ending)), "")
    if "v" not in _shape(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _ends_double(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _is_short(rest) else rest


def _replaced(word: str, endings: dict[str, str]) -> str:
    """The word with the longest ending that it has replaced, if the stem before it has any measure."""
    ending = max((ending for ending in endings if word.endswith(ending)), key=len, default="")
    if ending and _measure(rest := word[: -len(ending)]) > 0:
        return rest + endings[ending]
    return word


def _without_ending(word: str) -> str:
    ending = max((ending for ending in _STEP_4 if word.endswith(ending)), key=len, default="")
    kept = _KEPT_IN_STEP_4.get(ending, "")
    if ending and _measure(rest := word[: -len(ending)] + kept) > 1:
        return rest
    return word


def _without_final_e(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word)
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
