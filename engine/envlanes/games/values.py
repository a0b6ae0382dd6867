"""Copies and digests of observations and infos of gymnasium's environments, for any space.

An environment may return the same array repeatedly, or one that it uses internally, so returned values are copied at
once. A journal keeps a digest of each observation, or the bytes themselves if they are few.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from typing import Any

import numpy as np

from envlanes.episode.values import IMMUTABLE, copied

FIXED = IMMUTABLE | {np.float64, np.float32, np.int64, np.int32, np.bool_}  # immutable types
NUMBERS = FIXED - {complex, str, bytes, type(None)}  # such as rewards are
SHORT = 64  # bytes up to which the content replaces a digest
_OF_NUMPY = (np.ndarray, np.generic)
_LONG = 4096  # bytes of an array from which its digest consists of two checksums


def detached(value: Any) -> Any:
    """A copy that shares no memory with the value; the value itself if it is immutable."""
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if kind in FIXED or (isinstance(value, np.generic) and not isinstance(value, np.void)):
        return value
    if kind is dict:
        return {key: detached(item) for key, item in value.items()}
    if kind is tuple:
        return tuple([detached(item) for item in value])
    return copied(value)


def detached_info(info: Any) -> Any:
    """A copy of an info; the info itself if it is immutable throughout."""
    return detached(info) if info else ({} if type(info) is dict else info)


def digest_of(observation: Any) -> Any:
    """The digest of an observation for the journal: bytes, equal only for equal observations."""
    if isinstance(observation, np.ndarray) and observation.nbytes > _LONG and not observation.dtype.hasobject:
        # two checksums are enough of a hash here, and cost a fifth of one; views count as the copies of them do
        pixels: Any = np.ascontiguousarray(observation).reshape(-1).view(np.uint8)
        return b"%x %x " % (zlib.crc32(pixels), zlib.adler32(pixels)) + _form(observation.dtype, observation.shape)
    return _shortened(_content(observation))


def _shortened(found: bytes) -> bytes:
    return found if len(found) <= SHORT else hashlib.blake2b(found, digest_size=16).digest()


def _content(value: Any) -> bytes:
    kind = type(value)
    if issubclass(kind, _OF_NUMPY) and not value.dtype.hasobject:
        return value.tobytes() + _form(value.dtype, value.shape)
    if kind in IMMUTABLE:
        return repr(value).encode()
    if isinstance(value, dict):
        parts = [repr(key).encode() + _content(value[key]) for key in sorted(value, key=repr)]
    elif isinstance(value, tuple | list):
        parts = [_content(item) for item in value]
    else:
        return _pickled(value)
    digests = [hashlib.blake2b(part, digest_size=16).digest() for part in parts]
    return kind.__name__.encode() + b"".join(digests)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # what cannot be pickled is identified by its class alone
        return type(value).__qualname__.encode()


_forms: dict[tuple[Any, Any], bytes] = {}


def _form(dtype: Any, shape: tuple[int, ...]) -> bytes:
    found = _forms.get((dtype, shape))
    if found is None:
        found = _forms[dtype, shape] = f"{dtype.str}{shape}".encode()
        if len(_forms) > 1000:  # shapes that change all the time
            _forms.clear()
    return found


def dumped(value: Any) -> bytes:
    """A value pickled so that any process can load it, including instances of classes of the main script."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # classes that only the main script, or a function, defines
        import cloudpickle

        return cloudpickle.dumps(value)
