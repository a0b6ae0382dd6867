"""Copies and digests of observations of any kind: arrays, numbers, texts, and containers of these.

A journal keeps a digest of each observation, or the bytes themselves if they are few.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from envlanes.episode.values import IMMUTABLE, copied

_SHORT = 64  # bytes up to which the content replaces a digest: no more than a digest takes with its envelope
_LONG = 4096  # bytes of an array from which two checksums are cheaper than a hash, five times for pictures: measured


def detached(value: Any) -> Any:
    """:func:`copied`, quicker for arrays and plain containers; views of one array become arrays of their own."""
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if kind is dict:
        return {key: detached(item) for key, item in value.items()}
    return tuple([detached(item) for item in value]) if kind is tuple else copied(value)


def digest_of(observation: Any) -> Any:
    """The digest of an observation for the journal: bytes, equal only for equal observations."""
    if isinstance(observation, np.ndarray) and observation.nbytes > _LONG and not observation.dtype.hasobject:
        # A view counts as its copy does: the array of the replay may be laid out in another way.
        pixels: Any = np.ascontiguousarray(observation).reshape(-1).view(np.uint8)
        return b"%x %x " % (zlib.crc32(pixels), zlib.adler32(pixels)) + _form(observation.dtype, observation.shape)
    found = _content(observation)
    return found if len(found) <= _SHORT else hashlib.blake2b(found, digest_size=16).digest()


def _content(value: Any) -> bytes:
    kind = type(value)
    if issubclass(kind, np.ndarray | np.generic) and not value.dtype.hasobject:
        return value.tobytes() + _form(value.dtype, value.shape)
    if kind in IMMUTABLE:
        return repr(value).encode()
    if isinstance(value, dict):
        parts = [repr(key).encode() + _content(value[key]) for key in sorted(value, key=repr)]
    elif isinstance(value, tuple | list):
        parts = [_content(item) for item in value]
    else:
        try:
            return pickle.dumps(value, protocol=5)
        except Exception:  # not picklable: identified by its class alone
            return kind.__qualname__.encode()
    return kind.__name__.encode() + b"".join([hashlib.blake2b(part, digest_size=16).digest() for part in parts])


@lru_cache(maxsize=1000)  # writing it takes six times as long as all the rest of a small observation's digest
def _form(dtype: Any, shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{shape}".encode()
