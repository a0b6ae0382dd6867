"""Conversion of plain values to JSON and back.

Numbers, texts, lists and dicts with text keys stay as they are. Other dicts, tuples, sets, bytes, arrays, and journals
become a dict with one key that starts with ``$``. Any other value is read back as :class:`Lost`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.turn import Turn
from ragen.errors import CrashReportError, steady_repr

_DEEPEST = 30
_LONGEST_REPR = 300
_LARGEST_ARRAY = 10_000
_PLAIN = frozenset({type(None), bool, int, float, str})
_COLLECTIONS = {f"${kind.__name__}": kind for kind in (tuple, set, frozenset)}
_RECORDS: dict[str, Any] = {f"${kind.__name__}": kind for kind in (Turn, JournalTurn, Change, EpisodeJournal)}


@dataclass(frozen=True)
class Lost:
    """Replaces a value without a plain form.

    Attributes:
        text: Its ``repr``, shortened and without memory addresses.
    """

    text: str


def encode(value: Any, depth: int = 0) -> Any:
    """A value as plain data; never raises."""
    kind = type(value)
    if kind in _PLAIN:
        return value if kind is not float or isfinite(value) else {"$float": repr(value)}
    try:
        return _encode(value, f"${kind.__name__}", depth + 1) if depth < _DEEPEST else _lost(value)
    except Exception:
        return _lost(value)


def _encode(value: Any, form: str, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, Mapping):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: encode(item, depth) for key, item in value.items()}
        return {"$dict": [[encode(key, depth), encode(item, depth)] for key, item in value.items()]}
    if kind is list or kind is _COLLECTIONS.get(form):
        items = [encode(item, depth) for item in value]
        return items if kind is list else {form: items}
    if kind is _RECORDS.get(form):
        fields = value._asdict() if hasattr(value, "_asdict") else vars(value)
        return {form: encode(fields, depth)}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind.__module__ == "numpy" and value.dtype.kind in "biuf" and value.size <= _LARGEST_ARRAY:
        items = encode(value.tolist(), depth)
        return {"$array": items, "dtype": str(value.dtype)} if value.shape else items
    return _lost(value)


def _lost(value: Any) -> Any:
    text = value.text if isinstance(value, Lost) else steady_repr(value)
    return {"$lost": text[:_LONGEST_REPR]}


def read(text: str) -> Any:
    """The encoded value, with :class:`Lost` for parts that have no plain form; runs no foreign code.

    Raises:
        CrashReportError: A form is unknown.
        ValueError: The text is not JSON, or a value is damaged.
    """
    return json.loads(text, object_hook=_decoded)


def plain(value: Any) -> Any:
    """The value after encoding and reading; equal values give equal results in every process."""
    return read(json.dumps(encode(value)))


def _decoded(data: dict[str, Any]) -> Any:
    """The value of a dict whose values are decoded."""
    form = next((key for key in data if key.startswith("$")), None)
    if form is None:
        return data
    content = data[form]
    if form == "$array":
        import numpy as np

        dtype = np.dtype(str(data["dtype"]))
        if dtype.kind not in "biuf":
            raise ValueError(f"an array of {dtype} is not a plain value")
        return np.array(content, dtype=dtype)
    if form in _RECORDS:
        return _RECORDS[form](**content)
    others: dict[str, Any] = {**_COLLECTIONS, "$dict": dict, "$bytes": bytes.fromhex, "$float": float, "$lost": Lost}
    if form not in others:
        raise CrashReportError(f"a value of the unknown form {form!r} cannot be read by this version of ragen.")
    return others[form](content)


def lost_in(value: Any) -> list[str]:
    """The lost parts of a decoded value."""
    if isinstance(value, Lost):
        return [value.text]
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return [text for item in items for text in lost_in(item)] if isinstance(items, list | tuple | set) else []
