"""Pickling of user-defined values: each in its own bytes, and without changing the classes of the main process.

Built-in types, NumPy's and the engine's own run no other code when they are unpickled (:func:`.codec.is_plain`).
Anything else is pickled separately, and unpickled where an exception of its own code fails that item alone.

Classes of the main script are sent to workers by value, since workers never run that script, and become attributes of
the worker's own ``__main__``: an environment can pickle them by name, as it can in the script. On the way back they are
identified by a number, so that an instance arrives as an instance of the main process's own, unchanged class:
cloudpickle alone would apply the class body to it once more.
"""

from __future__ import annotations

import io
import itertools
import logging
import pickle
import sys
import warnings
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from envlanes import bare
from envlanes.episode import program
from envlanes.episode.outcome import Raised
from envlanes.episode.spec import EnvSpec
from envlanes.errors import EnvError

log = logging.getLogger(__name__)

NAMED = (type, FunctionType, BuiltinFunctionType)  # pickled by name
_numbers: WeakKeyDictionary[type, int] = WeakKeyDictionary()  # of classes that were sent or received by value
_classes: WeakValueDictionary[int, type] = WeakValueDictionary()
_counter = itertools.count(1)
_REGISTRATION = "gymnasium.envs.registration"
_is_receiver = False  # whether this process received such classes, and must identify them by number


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
            if not _is_receiver:
                return cls(pickle.dumps(value, protocol=5))
        except Exception:
            pass  # instances of classes that only the main script or a function defines
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
    packages: list[str]

    @classmethod
    def of(cls, specs: Sequence[EnvSpec]) -> PickledSpecs:
        """Pickle the specs of one tag; specs that cannot be pickled raise in :meth:`open`."""
        env_ids = [spec.env_id for spec in specs]
        try:
            pickled = _sent(list(specs))
        except Exception as error:
            reason = f"the environment's class or configuration cannot be pickled: {Raised.of(error, 'load').text}"
            pickled = _sent(reason)
        return cls(specs[0].env_type, env_ids, pickled, program.settings_now(), _sent_registry(), bare.packages)

    def open(self) -> list[EnvSpec]:
        """The specs, their classes imported.

        Raises:
            EnvError: They could not be pickled.
            Exception: Unpickling them may raise anything.
        """
        program.take_over(self.settings)
        if program.in_worker:
            bare.make(self.packages)
        # After the path and the bare packages: it imports the classes.
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
    """A value pickled with the classes that it needs by value, with their numbers, and the script's names in it."""
    # Filled while the value is pickled; pickle comes to them after it, as the tuple's later items.
    numbers: dict[int, type] = {}
    names: dict[str, Any] = {}
    return _carried((value, numbers, names), numbers, names)


def _received(pickled: bytes) -> Any:
    """The inverse of :func:`_sent`."""
    global _is_receiver
    value, numbers, names = pickle.loads(pickled)
    if numbers:  # from here on, instances of these classes are sent back by number
        _is_receiver = True
        for number, kind in numbers.items():
            _numbers[kind], _classes[number] = number, kind
    program.script_globals().update(names)
    return value


class _ScriptGlobals(dict[str, Any]):
    """Stands for the globals of the main script's functions."""

    def __reduce__(self) -> Any:
        return program.script_globals, ()


def _carried(value: Any, numbers: dict[int, type] | None = None, names: dict[str, Any] | None = None) -> bytes:
    """A value pickled with the classes and functions it needs by value.

    Those classes are added to ``numbers``, and the main script's classes and functions to ``names``, meanwhile.
    """
    import cloudpickle  # late: workers rarely need it

    class Carrier(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, obj: Any) -> Any:
            if _is_receiver and isinstance(obj, type) and (number := _numbers.get(obj)) is not None:
                return _class_of, (number,)
            if _is_receiver and type(obj) in _numbers and "__slots__" in vars(type(obj)):
                return _reduced_with_slots(obj)
            reduced = super().reducer_override(obj)
            made_by = getattr(reduced[0], "__name__", "") if isinstance(reduced, tuple) else ""
            if numbers is not None and isinstance(obj, type) and "skeleton" in made_by:
                numbers[_number(obj)] = obj
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


def _reduced_with_slots(obj: Any) -> Any:
    """Reduce an instance of a class that was received by value, which has lost its slots."""
    reduced = obj.__reduce_ex__(5)
    state = reduced[2] if len(reduced) > 2 else None
    if isinstance(state, tuple) and len(state) == 2:
        attributes = {**(state[0] or {}), **(state[1] or {})}
        return *reduced[:2], (None, attributes), *reduced[3:]
    return reduced


def _number(kind: type) -> int:
    """The number of a class that is sent by value."""
    number = _numbers.get(kind)
    if number is None:
        number = next(_counter)
        _numbers[kind], _classes[number] = number, kind
    return number


def _class_of(number: int) -> type:
    """The class with this number, in the process that sent it or in one that received it."""
    return _classes[number]
