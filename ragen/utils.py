"""Functions that environments and configurations written for RAGEN import from ``ragen.utils``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def all_seed(seed: int | None) -> Iterator[None]:
    """Seed the global generators of ``random`` and ``numpy.random`` within the block, and restore them after it.

    Args:
        seed: 0 to 2**32 - 1; None takes one from the system.

    Raises:
        ValueError: The seed is out of numpy's range; the generators are unchanged.
    """
    before, numpy_before = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed)
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def register_resolvers() -> None:
    """Register arithmetic resolvers: ``${mul:2,3}``, ``${int_div:7,2}``, ``${not:true}``; may be called twice."""
    from omegaconf import OmegaConf  # workers import environments, and no omegaconf

    resolvers = {
        "mul": lambda x, y: x * y,
        "int_div": lambda x, y: int(float(x) / float(y)),
        "not": lambda x: not x,
    }
    for name, resolver in resolvers.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, resolver)  # type: ignore[arg-type]
