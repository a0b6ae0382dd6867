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
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_one_at_a_time = threading.RLock()
_in_place: EnvRng | None = None  # whose states the global generators have now
keeps_outer = True  # whether anyone but environments draws from them in this process


class EnvRng:
    """One environment's state of the global generators."""

    __slots__ = ("_bit_generator", "_python_state")

    def __init__(self, seed: int | None) -> None:
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


class PythonRng:
    """A state of ``random`` alone, for what is known never to draw from NumPy's global generator.

    It gives the process's own state back by itself, one thread at a time; not in workers, where nothing draws but
    environments with states of their own.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int | None) -> None:
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Begin again."""
        self._state = random.Random(seed).getstate()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the global generator be this one for the length of one call."""
        with _one_at_a_time:
            outer = random.getstate() if keeps_outer or _in_place is not None else None
            random.setstate(self._state)
            try:
                yield
            finally:
                self._state = random.getstate()
                if outer is not None:
                    random.setstate(outer)


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
