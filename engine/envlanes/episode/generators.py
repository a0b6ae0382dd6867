"""An environment's own random generators: finding, reading and restoring them.

A reset without a seed continues with the generators as they are, so an episode that began this way can be rebuilt only
from their states. Gymnasium's convention is one ``np_random``; spaces have generators too, and many environments keep
one in an attribute. All generators that are attributes of the environment or of one of its wrappers are found. One
nested deeper is not found, and causes a divergence when the environment is rebuilt.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

SEED = "_np_random_seed"  # an attribute of gymnasium's environments
OWN = "_np_random"
_FRESH = ("PCG64", "PCG64DXSM")  # generators whose state is a new dictionary of numbers

State = list[tuple[int, tuple[Any, ...], Any]]  # how many wrappers deep, where, and the state


def states(env: Any, of_spaces: bool = False) -> State:
    """The states of an environment's generators, or of its spaces' alone, which a seeded reset leaves as they are.

    Gymnasium makes those of an environment and of a space when they are first used; they are made now.
    """
    if not of_spaces:
        getattr(getattr(env, "unwrapped", env), "np_random", None)
    found: State = []
    for depth, layer in enumerate(_layers(env)):
        attributes = _attributes(layer)
        if SEED in attributes and not of_spaces:
            found.append((depth, (SEED,), attributes[SEED]))
        if _STATELESS.issuperset(map(type, attributes.values())):  # as most wrappers
            continue
        for name, value in attributes.items():
            if type(value) not in _STATELESS and name != SEED and (not of_spaces or _is_space(value)):
                for path, state in _states_in(value):
                    found.append((depth, (name, *path), state))
    return found


def restore(env: Any, found: State) -> None:
    """Restore states that :func:`states` returned for an identically built environment."""
    layers = list(_layers(env))
    for depth, path, state in found:
        if depth >= len(layers):
            continue
        holder, name = layers[depth], path[0]
        if name == SEED:
            holder.__dict__[SEED] = state
            continue
        for step in path[1:]:
            holder, name = _get(holder, name), step
        _put(holder, name, state)


def _layers(env: Any) -> Iterator[Any]:
    seen = 0
    while env is not None and seen < 100:
        yield env
        env, seen = _attributes(env).get("env"), seen + 1


def _attributes(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", None) or {}


def _states_in(value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """States of a generator, or of a space and the spaces in it, with their paths."""
    kind: Any = type(value)
    what = _sort_of(kind)
    if what is NUMPY:
        state = _numpy_state(value)
        if state is not None:
            yield (), state
    elif what is PYTHON:
        yield (), ("random", value.getstate())
    elif what is PLAIN_SPACE:
        yield (OWN,), _numpy_state(value.np_random)
    elif what is SPACE:
        getattr(value, "np_random", None)
        for name, part in _attributes(value).items():
            if part is None or (type(part) in _STATELESS and name not in ("spaces", OWN)):
                continue
            if name == OWN:
                yield (name,), _numpy_state(part)
            elif name == "spaces" and part:
                for key, space in part.items() if isinstance(part, dict) else enumerate(part):
                    yield from (((name, key, *path), state) for path, state in _states_in(space))
            elif _is_space(part):
                yield from (((name, *path), state) for path, state in _states_in(part))


NOTHING, NUMPY, PYTHON, SPACE, PLAIN_SPACE = range(5)
"""Sorts of values: without a generator, a generator, a space with perhaps some in it, one that has only its own."""

_STATELESS: set[type] = set()  # those of sort NOTHING: every attribute is looked at at every reset without a seed


@lru_cache(maxsize=1000)
def _sort_of(kind: Any) -> int:
    """What sort of value those of a class are."""
    module = kind.__module__
    if any(each.__module__.startswith("numpy.random") for each in kind.__mro__):  # gym had a class of its own
        return NUMPY
    if kind is random.Random:
        return PYTHON
    if hasattr(kind, "contains") and hasattr(kind, "sample"):
        is_plain = module.startswith("gymnasium.spaces.") and kind.__name__ in ("Box", "Discrete", "MultiDiscrete")
        return PLAIN_SPACE if is_plain else SPACE
    if len(_STATELESS) < 1000:  # classes may be made all the time
        _STATELESS.add(kind)
    return NOTHING


def _is_space(value: Any) -> bool:
    kind: Any = type(value)
    return _sort_of(kind) in (SPACE, PLAIN_SPACE)


def _numpy_state(generator: Any) -> Any:
    bits = getattr(generator, "bit_generator", None)
    if bits is not None:
        state = bits.state
        return type(generator).__name__, state if state["bit_generator"] in _FRESH else copy.deepcopy(state)
    return ("RandomState", generator.get_state(legacy=False)) if hasattr(generator, "get_state") else None


def _get(holder: Any, name: Any) -> Any:
    return holder[name] if isinstance(holder, dict | list | tuple) else getattr(holder, name, None)


def _put(holder: Any, name: Any, state: Any) -> None:
    import numpy as np

    kind, content = state
    present = _get(holder, name)
    if kind == "random":
        present = holder.__dict__[name] = random.Random() if present is None else present
        present.setstate(content)
    elif kind == "RandomState":
        present = holder.__dict__[name] = np.random.RandomState() if present is None else present
        present.set_state(content)
    elif getattr(present, "bit_generator", None) is not None and (
        type(present.bit_generator).__name__ == content["bit_generator"]
    ):
        present.bit_generator.state = content
    else:
        made = np.random.Generator(getattr(np.random, content["bit_generator"])())
        made.bit_generator.state = content
        holder.__dict__[name] = made
