"""Give each environment its own state of the global ``random`` and ``numpy.random`` generators.

An environment that draws from them would otherwise see different numbers whenever the order of steps changes, as it
does when environments live in several processes. Every environment that does not declare ``uses_global_rng = False``
therefore owns a state of both generators: seeded with the episode's seed at reset, installed before each call and
removed after it, in the main process as in workers.

NumPy's state is switched by exchanging the global generator's bit generator, ten times cheaper than copying its state.
The exchange drops a Gaussian that ``numpy.random.normal`` has cached for its next call, in every process alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_in_place: EnvRng | None = None  # the owner of the global generators' present states


class EnvRng:
    """One environment's state of the global generators."""

    __slots__ = ("_bit_generator", "_python_state")

    def __init__(self, seed: int | None) -> None:
        import numpy as np  # before the environment can import it, so that its first draws are seeded too

        self._bit_generator: Any = np.random.MT19937(0)
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Seed again; the bit generator is reused, since creating one costs a hundred times as much as seeding it."""
        import numpy as np

        if type(self._bit_generator) is not np.random.MT19937:  # the environment has put another one in place
            self._bit_generator = np.random.MT19937(0)
        # The legacy seeding, which is that of `numpy.random.seed`, takes 32 bits.
        np.random.RandomState(self._bit_generator).seed(None if seed is None else seed % 2**32)
        self._python_state = random.Random(seed).getstate()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Install this environment's state in the global generators for the length of one call."""
        import numpy as np

        global _in_place
        # Python's state is a tuple and is copied each way; NumPy's is exchanged with its generator.
        random.setstate(self._python_state)
        np.random.mtrand.set_bit_generator(self._bit_generator)
        outer, _in_place = _in_place, self
        try:
            yield
        finally:
            _in_place = outer  # an environment may step one of another engine in its own turn
            self._python_state = random.getstate()
            self._bit_generator = np.random.mtrand.get_bit_generator()

    def state(self) -> tuple[Any, Any]:
        """Both states, for :meth:`restore` in this or another process."""
        return self._python_state, self._bit_generator.state

    def restore(self, state: tuple[Any, Any]) -> None:
        """Restore states returned by :meth:`state`."""
        import numpy as np

        self._python_state, numpy_state = state
        self._bit_generator = getattr(np.random, numpy_state["bit_generator"])(0)
        self._bit_generator.state = numpy_state


def state_in_place() -> tuple[Any, Any] | None:
    """The global generators' current states if they are an environment's, as :meth:`EnvRng.state` returns them."""
    if _in_place is None:
        return None
    import numpy as np

    return random.getstate(), np.random.mtrand.get_bit_generator().state


@contextmanager
def outer_state_kept() -> Iterator[None]:
    """Restore the process's own generator states afterwards, including the cached Gaussian; in one thread at a time."""
    import numpy as np

    python_state = random.getstate()
    bit_generator = np.random.mtrand.get_bit_generator()
    numpy_state = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.mtrand.set_bit_generator(bit_generator)
        np.random.set_state(numpy_state)
