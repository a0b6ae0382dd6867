"""Pickling of user-defined values: each in its own bytes, and without changing the classes of the main process.

Built-in types, NumPy's and the engine's own run no other code when they are unpickled (:func:`.codec.is_plain`).
Anything else is pickled separately, and unpickled where an exception of its own code fails that item alone.

Classes of the main script are sent to workers by value, since workers never run that script, and become attributes of
the worker's own ``__main__``: there they are pickled by name, as in the script, and an instance arrives as one of the
main process's own, unchanged class. Classes that have no name, such as those of a function, come back by the id under
which cloudpickle tracks them: alone, it would apply the class body to the main process's own class once more.
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
import warnings
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakSet

from envlanes.episode import program
from envlanes.episode.outcome import Raised
from envlanes.episode.spec import EnvSpec
from envlanes.errors import EnvError

log = logging.getLogger(__name__)

NAMED = (type, FunctionType, BuiltinFunctionType)  # pickled by name
_REGISTRATION = "gymnasium.envs.registration"
_received_classes: WeakSet[type] = WeakSet()  # by value, in a worker


class Pickled:
    """A separately pickled value.

    Attributes:
        pickled: The bytes.
    """

    __slots__ = ("pickled",)

    def __init__(self, pickled: bytes) -> None:
        """Hold these bytes; :meth:`open` unpickles them."""
        self.pickled = pickled

    @classmethod
    def of(cls, value: Any) -> Pickled:
        """Pickle a value.

        Raises:
            Exception: It cannot be pickled.
        """
        try:
            return cls(pickle.dumps(value, protocol=5))
        except Exception:  # instances of classes that only the main script or a function defines
            return cls(_carried(value))

    def open(self) -> Any:
        """The value.

        Raises:
            Exception: Unpickling it may raise anything.
        """
        return pickle.loads(self.pickled)

    def __reduce__(self) -> Any:
        return Pickled, (self.pickled,)


class CannotTravel(Exception):
    """A request to some environments, or their specs, cannot be pickled."""

    def __init__(self, failed: dict[int, Raised]) -> None:
        super().__init__(failed)
        self.failed = failed


class PickledSpecs(NamedTuple):
    """The specs of one tag, pickled separately, with what unpickling and building them needs of the program.

    A class that cannot be loaded in a worker thus affects no environment of another tag.
    """

    env_type: str
    env_ids: list[int]
    pickled: bytes
    settings: dict[str, Any]
    registered: bytes

    @classmethod
    def of(cls, specs: Sequence[EnvSpec]) -> PickledSpecs:
        """Pickle the specs of one tag; specs that cannot be pickled raise in :meth:`open`."""
        env_ids = [spec.env_id for spec in specs]
        try:
            pickled = _sent(list(specs))
        except Exception as error:
            reason = f"the environment's class or configuration cannot be pickled: {Raised.of(error, 'load').text}"
            pickled = _sent(reason)
        return cls(specs[0].env_type, env_ids, pickled, program.settings_now(), _sent_registry())

    def open(self) -> list[EnvSpec]:
        """The specs, their classes imported.

        Raises:
            EnvError: They could not be pickled.
            Exception: Unpickling them may raise anything.
        """
        program.take_over(self.settings)
        # After the path: it imports the classes.
        found = _received(self.pickled)
        if isinstance(found, str):
            raise EnvError(found)
        if program.in_worker and self.registered:
            warnings.filterwarnings("ignore", ".*Overriding environment")  # as a module is imported that registers ids
            try:
                registered = _received(self.registered)  # imports gymnasium
                sys.modules[_REGISTRATION].registry.update(registered)
            except Exception:  # this machine lacks gymnasium, or the class of an id that others may need
                log.debug("the ids that the program has registered with gymnasium are unknown here", exc_info=True)
        return found


def _sent_registry() -> bytes:
    """Gymnasium's registry, pickled, for programs that have imported it: they may have registered ids themselves."""
    if (registration := sys.modules.get(_REGISTRATION)) is None:
        return b""
    registry = dict(registration.registry)
    try:
        return _sent(registry)
    except Exception:
        return _sent({id: entry for id, entry in registry.items() if _can_be_sent(entry)})


def _can_be_sent(value: Any) -> bool:
    try:
        return bool(_sent(value))
    except Exception:
        return False


def _sent(value: Any) -> bytes:
    """A value pickled with the classes that it needs by value, and the script's names in it."""
    names: dict[str, Any] = {}  # filled while the value is pickled; pickle comes to it after that
    return _carried((value, names), names)


def _received(pickled: bytes) -> Any:
    """The inverse of :func:`_sent`."""
    from cloudpickle import cloudpickle

    before = set(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)
    value, names = pickle.loads(pickled)
    _received_classes.update(set(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS) - before)
    program.script_globals().update(names)
    return value


class _ScriptGlobals(dict[str, Any]):
    """Stands for the globals of the main script's functions."""

    def __reduce__(self) -> Any:
        return program.script_globals, ()


def _carried(value: Any, names: dict[str, Any] | None = None) -> bytes:
    """A value pickled with the classes and functions it needs by value; the main script's are added to ``names``."""
    import cloudpickle  # late: workers rarely need it

    class Carrier(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and obj in _received_classes:
                return _class_of, (cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[obj],)
            reduced: Any = super().reducer_override(obj)
            if reduced is not NotImplemented and isinstance(obj, type) and "__slots__" in vars(obj):
                reduced[1][3]["__slots__"] = vars(obj)["__slots__"]  # cloudpickle loses them
            name = getattr(obj, "__name__", "")
            if names is not None and isinstance(obj, NAMED) and script.get(name) is obj:
                names[name] = obj
            return reduced

    script = vars(sys.modules["__main__"])
    file = io.BytesIO()
    carrier = Carrier(file, protocol=5)
    carrier.globals_ref[id(script)] = _ScriptGlobals()  # cloudpickle would give functions a copy of what they use
    carrier.dump(value)
    return file.getvalue()


def _class_of(number: str) -> Any:
    """The class with this id, in the process that sent it or in one that received it."""
    from cloudpickle import cloudpickle

    return cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[number]
