"""An environment's own generators: found, read, and put back.

A reset without a seed goes on with generators as they are, so that an episode that began so can be rebuilt only from
their states. Gymnasium's convention is one ``np_random``; spaces have generators too, and many environments keep one in
an attribute. All that hang directly on the environment or on one of its wrappers are found; what an environment hides
deeper is not, and shows as a divergence when it is rebuilt.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

SEED = "_np_random_seed"  # what gymnasium's environments and their users read back
OWN = "_np_random"

State = list[tuple[int, tuple[Any, ...], Any]]  # how many wrappers deep, where, and the state


def states(env: Any) -> State:
    """The states of an environment's generators; gymnasium's own is made now if there is none yet."""
    getattr(getattr(env, "unwrapped", env), "np_random", None)
    found: State = []
    for depth, layer in enumerate(_layers(env)):
        for name, value in list(_attributes(layer).items()):
            if name == SEED:
                found.append((depth, (name,), value))
            else:
                found += [(depth, (name, *path), state) for path, state in _states_in(value)]
    return found


def restore(env: Any, found: State) -> None:
    """Put states back that :func:`states` gave of an environment that is built alike."""
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
    kind = type(value)
    if kind.__module__.startswith("numpy.random"):
        state = _numpy_state(value)
        if state is not None:
            yield (), state
    elif kind is random.Random:
        yield (), ("random", value.getstate())
    elif _is_space(value):
        for name, part in _attributes(value).items():
            if name == OWN and part is not None:
                yield (name,), _numpy_state(part)
            elif name == "spaces" and part:
                for key, space in part.items() if isinstance(part, dict) else enumerate(part):
                    yield from (((name, key, *path), state) for path, state in _states_in(space))
            elif _is_space(part):
                yield from (((name, *path), state) for path, state in _states_in(part))


def _is_space(value: Any) -> bool:
    return hasattr(value, "contains") and hasattr(value, "sample")


def _numpy_state(generator: Any) -> Any:
    bits = getattr(generator, "bit_generator", None)
    if bits is not None:
        return type(generator).__name__, copy.deepcopy(bits.state)
    return ("RandomState", generator.get_state(legacy=False)) if hasattr(generator, "get_state") else None


def _get(holder: Any, name: Any) -> Any:
    return holder[name] if isinstance(holder, dict | list | tuple) else getattr(holder, name, None)


def _put(holder: Any, name: Any, state: Any) -> None:
    import numpy as np

    kind, content = state
    present = _get(holder, name)
    if kind == "random":
        present.setstate(content)
    elif kind == "RandomState":
        present.set_state(content)
    elif getattr(present, "bit_generator", None) is not None and (
        type(present.bit_generator).__name__ == content["bit_generator"]
    ):
        present.bit_generator.state = content
    else:
        made = np.random.Generator(getattr(np.random, content["bit_generator"])())
        made.bit_generator.state = content
        holder.__dict__[name] = made
