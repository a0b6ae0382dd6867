"""Reset one member of a group and copy it to the others, for environments that do not know how themselves.

Members of a group share class, configuration and seed, so one reset can serve all. An environment that overrides
``copy_from`` says how; for any other one a copy is made through pickle, under three conditions, each of which refuses
rather than risks a wrong copy:

- it consists of plain data all the way down: built-in types, arrays, random generators, and instances of Python classes
  that do not customise their pickling (which could leave something out);
- two members that were really reset gave the same bytes, so that its reset depends on the seed alone, and a copy then
  shows and plays the same as an understudy that was really reset, so that nothing is kept elsewhere (both tried once
  for each tag and process, where an understudy that hangs can be interrupted: in main threads);
- its reset is slow enough for a copy to pay.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from types import ModuleType
from typing import Any

from ragen.env.base import BaseEnv

_FUNCTIONS = {"function", "builtin_function_or_method", "cython_function_or_method"}  # pickled as references
WORTH_COPYING = 3e-4  # seconds of a reset from which a copy pays


class PlainDataPickler(pickle.Pickler):
    """Pickles plain data, and refuses what might be more than that."""

    def reducer_override(self, obj: Any) -> Any:
        """Let an object through, or refuse it.

        Raises:
            pickle.PicklingError: The object is not plain data.
        """
        kind = type(obj)
        if any(obj is shared for shared in _shared_generators()) or _is_bound(obj):
            raise pickle.PicklingError("a generator that is not the environment's own")
        package = kind.__module__.partition(".")[0]
        by_name = isinstance(obj, type) or kind.__name__ in _FUNCTIONS
        if by_name or isinstance(obj, random.Random) or package in ("numpy", "collections") or _is_plain(kind):
            return NotImplemented
        raise pickle.PicklingError(f"{kind.__module__}.{kind.__qualname__} is not plain data")


def _shared_generators() -> list[Any]:
    """The process's global generators; an environment that holds one must go on sharing it."""
    numpy_random = sys.modules.get("numpy.random.mtrand")
    return [random._inst, *([numpy_random._rand] if numpy_random else [])]  # type: ignore[attr-defined]


def _is_bound(obj: Any) -> bool:
    """Whether this is a built-in method of some instance, whose copy would be of another one."""
    return type(obj).__name__ in _FUNCTIONS and not isinstance(getattr(obj, "__self__", None), ModuleType | None)


def _is_plain(kind: type) -> bool:
    """Whether instances are nothing but their ``__dict__``."""
    names = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
    return (
        kind.__flags__ & (1 << 9) != 0  # a heap type: defined in Python (or as good as)
        and kind.__dictoffset__ != 0
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in names)
    )


def picture(env: Any) -> bytes | None:
    """The environment's state as bytes; None if it is not plain data."""
    buffer = io.BytesIO()
    try:
        PlainDataPickler(buffer, protocol=5).dump(env.__dict__)
    except Exception:  # whatever cannot be pictured is reset instead
        return None
    return buffer.getvalue()


def paint(env: Any, state: bytes) -> None:
    """Give an environment the pictured state."""
    env.__dict__ = pickle.loads(state)


class GroupCopier:
    """Decides for one tag of a host whether members may be copied."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._trusted: bool | None = None

    def wants(self, env: Any, reset_seconds: float) -> bool:
        """Whether a picture of this just reset environment is of use."""
        overrides = getattr(type(env), "copy_from", BaseEnv.copy_from) is not BaseEnv.copy_from
        return self._trusted is not False and not overrides and reset_seconds > WORTH_COPYING

    def learn(self, is_right: bool) -> None:
        """Learn whether a copy turned out right."""
        self._trusted = is_right

    @property
    def is_trusted(self) -> bool:
        """Whether copies are known to be right."""
        return self._trusted is True
