"""Keep the global ``random`` and ``numpy.random`` generators apart for each environment.

An environment that draws from them would otherwise see other numbers whenever the order of steps changes, which it does
as soon as environments live in several processes. Every environment that does not declare ``uses_global_rng = False``
therefore owns a state of both generators: seeded with the episode's seed at reset, put in place before each call and
taken out after it, in the main process as in workers.

NumPy's state is kept by exchanging the global generator's bit generator, ten times cheaper than copying its state. A
Gaussian that ``numpy.random.normal`` holds back for its next call is dropped at the exchange, in every process alike.
"""

from __future__ import annotations

import copy
import ctypes
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_MT19937_BYTES = 624 * 4 + 4  # the key and the position, which is all of NumPy's struct
_HEADER, _WORDS = object.__basicsize__, 624 * 4 + 4  # bytes of any object's header, and of Python's own generator
_global: random.Random = random.getstate.__self__  # type: ignore[attr-defined]  # whose methods the module's functions are
_one_at_a_time = threading.RLock()
_in_place: EnvRng | None = None  # whose states the global generators have now


class EnvRng:
    """One environment's state of the global generators."""

    __slots__ = ("_bit_generator", "_python_state")

    def __init__(self, seed: int | None) -> None:
        """Begin as ``random.seed(seed)`` and ``numpy.random.seed(seed % 2**32)`` would."""
        import numpy as np  # before the environment can import it, so that its first draws are seeded too

        self._bit_generator: Any = np.random.MT19937(0)
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Begin again; a bit generator is kept, since making one costs a hundred times what seeding it does."""
        import numpy as np

        if type(self._bit_generator) is not np.random.MT19937:  # the environment has put another one in place
            self._bit_generator = np.random.MT19937(0)
        np.random.RandomState(self._bit_generator).seed(None if seed is None else seed % 2**32)
        self._python_state = random.Random(seed).getstate()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the global generators be this environment's for the length of one call."""
        import numpy as np

        global _in_place
        random.setstate(self._python_state)
        np.random.mtrand.set_bit_generator(self._bit_generator)
        outer, _in_place = _in_place, self
        try:
            yield
        finally:
            _in_place = outer
            self._python_state = random.getstate()
            self._bit_generator = np.random.mtrand.get_bit_generator()

    def state(self) -> tuple[Any, Any]:
        """Both states, to be given to :meth:`restore` here or in another process."""
        return self._python_state, copy.deepcopy(self._bit_generator.state)

    def restore(self, state: tuple[Any, Any]) -> None:
        """Take up states that :meth:`state` gave."""
        import numpy as np

        self._python_state, numpy_state = state
        self._bit_generator = getattr(np.random, numpy_state["bit_generator"])(0)
        self._bit_generator.state = numpy_state

    def copy_from(self, other: EnvRng) -> None:
        """Take over another environment's states."""
        import numpy as np

        mine, theirs = self._bit_generator, other._bit_generator
        if type(mine) is type(theirs) is np.random.MT19937:
            ctypes.memmove(mine.ctypes.state_address, theirs.ctypes.state_address, _MT19937_BYTES)
        else:
            self._bit_generator = copy.deepcopy(theirs)
        self._python_state = other._python_state


class PythonRng:
    """A state of ``random`` alone, for what is known never to draw from NumPy's global generator; costs microseconds.

    It gives the process's own state back by itself, one thread at a time.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int | None) -> None:
        """Begin as ``random.seed(seed)`` would."""
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Begin again."""
        self._state = _state_of(random.Random(seed))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the global generator be this one for the length of one call."""
        with _one_at_a_time:
            outer = _state_of(_global)
            _put_state(_global, self._state)
            try:
                yield
            finally:
                self._state = _state_of(_global)
                _put_state(_global, outer)


def _state_of(rng: random.Random) -> Any:
    """A generator's state: its words as they lie in memory where that is known, else ``getstate()``.

    ``getstate`` makes a tuple of 625 integers, and what it drives out of the processor's caches costs an environment
    more than the call itself: a twentieth of a step of 2 ms, for two of them and two of ``setstate``.
    """
    return (ctypes.string_at(id(rng) + _HEADER, _WORDS), rng.gauss_next) if _is_one_block() else rng.getstate()  # type: ignore[attr-defined]


def _put_state(rng: random.Random, state: Any) -> None:
    if _is_one_block():
        words, rng.gauss_next = state  # type: ignore[attr-defined]
        ctypes.memmove(id(rng) + _HEADER, words, _WORDS)
    else:
        rng.setstate(state)


@cache
def _is_one_block() -> bool:
    """Whether a generator's state is all that it holds, and may be copied in one piece; tried on two of them."""
    room = random.Random.__base__.__basicsize__ - _HEADER  # type: ignore[union-attr]
    if sys.implementation.name != "cpython" or not _WORDS <= room < _WORDS + 8:
        return False
    one, other = random.Random(1), random.Random(2)
    one.random()
    ctypes.memmove(id(other) + _HEADER, ctypes.string_at(id(one) + _HEADER, _WORDS), _WORDS)
    return one.getstate() == other.getstate() and one.random() == other.random()


def state_in_place() -> tuple[Any, Any] | None:
    """The states that the global generators have now, if they are an environment's; as :meth:`EnvRng.state` gives."""
    if _in_place is None:
        return None
    import numpy as np

    return random.getstate(), copy.deepcopy(np.random.mtrand.get_bit_generator().state)


@contextmanager
def outer_state_kept() -> Iterator[None]:
    """Give the process's own generator states back afterwards, to the last held-back Gaussian.

    One thread at a time: another one that steps such environments in this process waits.
    """
    import numpy as np

    with _one_at_a_time:
        python_state = random.getstate()
        bit_generator = np.random.mtrand.get_bit_generator()
        numpy_state = np.random.get_state(legacy=False)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.mtrand.set_bit_generator(bit_generator)
            np.random.set_state(numpy_state)
