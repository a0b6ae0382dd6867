"""Functions that environments and configurations written for RAGEN import from ``ragen.utils``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ragen.errors import ConfigError, described_with_place, did_you_mean, where_sought


@contextmanager
def all_seed(seed: int | None) -> Iterator[None]:
    """Seed the global generators of ``random`` and ``numpy.random`` within the block, and restore them after it.

    Args:
        seed: 0 to 2**32 - 1; None takes one from the system.

    Raises:
        ValueError: The seed is out of numpy's range; the generators are unchanged.
    """
    import numpy as np  # here, so that help comes at once

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


def object_at(path: str, where: str, what: str) -> Any:
    """A user's function or class by its import path.

    Args:
        path: ``package.module:name``.
        where: The option or key that names it, such as ``"--reward"``; messages begin with it.
        what: ``"FUNCTION"`` or ``"CLASS"``, for messages.

    Raises:
        ConfigError: It cannot be imported.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"{where} is {path!r}; expected PACKAGE.MODULE:{what}.")
    try:
        found = import_module(module)
        if not hasattr(found, name) and (meant := did_you_mean(name, dir(found), lambda near: f"{module}:{near}")):
            raise ConfigError(f"{where} is {path!r}, but {module} has no {name!r}.{meant}")
        return getattr(found, name)
    except ConfigError:
        raise
    except Exception as error:  # the module may raise anything on import
        raise ConfigError(
            f"{where} is {path!r}, which cannot be imported: {described_with_place(error)}."
            f"{where_sought(module, error)}"
        ) from error
