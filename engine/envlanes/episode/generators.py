"""An environment's own random generators: finding, reading and restoring them.

A reset without a seed continues with the generators as they are, so an episode that began this way can be rebuilt only
from their states. Gymnasium's convention is one ``np_random``; spaces have generators too, and many environments keep
one in an attribute. All generators that are attributes of the environment or of one of its wrappers are found. One
nested deeper is not found, and causes a divergence when the environment is rebuilt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

SEED, OWN = "_np_random_seed", "_np_random"  # attributes of gymnasium's environments and spaces
_MOST_LAYERS = 100  # wrappers that are followed: an environment's `env` may lead back to itself

State = Sequence[tuple[tuple[Any, ...], Any]]  # the path from the outermost wrapper, and the state


def states(env: Any, of_spaces: bool = False) -> State:
    """The states of an environment's generators, or of its spaces' alone, which a seeded reset leaves as they are.

    Gymnasium makes those of an environment and of a space when they are first used; they are made now.
    """
    if not of_spaces:
        getattr(getattr(env, "unwrapped", env), "np_random", None)
    found: list[tuple[tuple[Any, ...], Any]] = []
    path: tuple[Any, ...] = ()
    # From the outermost wrapper inwards, along the attribute by which gymnasium's wrappers hold the next one.
    while env is not None and len(path) < _MOST_LAYERS:
        attributes = _attributes(env)
        if SEED in attributes and not of_spaces:
            found.append(((*path, SEED), attributes[SEED]))
        for name, value in attributes.items():
            sort = _sort_of(type(value))  # type: ignore[arg-type]
            if sort and (sort == "space" or not of_spaces):
                found += [((*path, name, *inner), state) for inner, state in _states_in(value, sort)]
        env, path = attributes.get("env"), (*path, "env")
    return found


def restore(env: Any, found: State) -> None:
    """Restore states that :func:`states` returned for an identically built environment."""
    for path, state in found:
        holder = env
        for step in path[:-1]:
            holder = _get(holder, step)
        if path[-1] == SEED:
            vars(holder)[SEED] = state
        else:
            _put(holder, path[-1], state)


def _attributes(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", None) or {}


@lru_cache(maxsize=1000)  # every attribute is looked at in every reset without a seed
def _sort_of(kind: Any) -> str:
    """``"generator"``, ``"space"``, or "" for a class of other values."""
    import numpy as np  # late: the commands' help imports this module

    if issubclass(kind, np.random.Generator | np.random.RandomState) or kind is random.Random:
        return "generator"
    return "space" if hasattr(kind, "contains") and hasattr(kind, "sample") else ""


def _states_in(value: Any, sort: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """States of a generator, or of a space and the spaces in it, with their paths."""
    if sort == "generator":
        yield (), _state_of(value)
        return
    getattr(value, "np_random", None)  # makes it, if the space has not been sampled yet
    for name, part in _attributes(value).items():
        if name == OWN and part is not None:
            yield (name,), _state_of(part)
        elif name == "spaces" and part:
            for key, space in part.items() if isinstance(part, dict) else enumerate(part):
                yield from (((name, key, *path), state) for path, state in _states_in(space, "space"))
        elif _sort_of(type(part)) == "space":  # type: ignore[arg-type]
            yield from (((name, *path), state) for path, state in _states_in(part, "space"))


def _state_of(generator: Any) -> Any:
    import numpy as np

    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state  # a new dictionary, with new arrays, for each of NumPy's kinds


def _get(holder: Any, name: Any) -> Any:
    return holder[name] if isinstance(holder, dict | list | tuple) else getattr(holder, name, None)


def _put(holder: Any, name: Any, state: Any) -> None:
    """Restore a generator, in place if it is there: the environment may hold it under a second name."""
    import numpy as np

    present = _get(holder, name)
    if isinstance(state, tuple):
        if present is None:
            present = vars(holder)[name] = random.Random()
        present.setstate(state)
    elif "has_gauss" in state:
        if present is None:
            present = vars(holder)[name] = np.random.RandomState()
        present.set_state(state)
    else:
        kind = getattr(np.random, state["bit_generator"])
        if not isinstance(getattr(present, "bit_generator", None), kind):
            present = vars(holder)[name] = np.random.Generator(kind())
        present.bit_generator.state = state
