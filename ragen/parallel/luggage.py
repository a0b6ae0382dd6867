"""How environments' specs and turns travel to workers.

Specs are pickled by tag, together with the import path that they need there; the turns of a batch are taken apart by
field, which pickles in half the time.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ragen.errors import EnvError
from ragen.parallel.host import Raised
from ragen.parallel.turn import EnvSpec, TurnRequest, named


def pack_requests(requests: Iterable[TurnRequest]) -> list[tuple[Any, ...]]:
    """The env_ids, turns, actions and numbers of actions left of these turns."""
    return list(zip(*requests, strict=True))


def unpack_requests(fields: Iterable[tuple[Any, ...]]) -> list[TurnRequest]:
    """What was packed."""
    return [named(TurnRequest, request) for request in zip(*fields, strict=True)]


def pack_specs(specs: Iterable[EnvSpec]) -> list[tuple[str, list[int], bytes]]:
    """Specs by tag, pickled apart, so that a class that cannot be loaded in a worker harms no other.

    Returns:
        For each tag its type, its env_ids, and its specs as bytes. What cannot be pickled raises where it is loaded.
    """
    by_tag: dict[str, list[EnvSpec]] = defaultdict(list)
    for spec in specs:
        by_tag[spec.tag].append(spec)
    return [(group[0].env_type, [spec.env_id for spec in group], _pickled(group)) for group in by_tag.values()]


def _pickled(specs: list[EnvSpec]) -> bytes:
    import cloudpickle  # late: workers import this module too, and need not load it

    try:
        pickled = cloudpickle.dumps(specs)  # classes of the main script travel by value: workers never run it
        return pickle.dumps(_Luggage(pickled))
    except Exception as error:
        return cloudpickle.dumps(_Unpicklable(Raised.of(error, "load").text))


class _Luggage:
    """Something pickled, together with the import path that it needs to be unpickled."""

    def __init__(self, pickled: bytes) -> None:
        """Pack this; unpickling the luggage gives what was pickled."""
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return _unpacked, (list(sys.path), self._pickled)


def _unpacked(path: list[str], pickled: bytes) -> Any:
    missing = [entry for entry in path if entry not in sys.path]
    if missing:
        sys.path += missing
        importlib.invalidate_caches()
    return pickle.loads(pickled)


class _Unpicklable:
    """Stands for specs that could not be pickled; raises why, where they are loaded."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __reduce__(self) -> Any:
        return _raise_unpicklable, (self.reason,)


def _raise_unpicklable(reason: str) -> None:
    raise EnvError(f"the environment's class or configuration cannot be pickled: {reason}")
