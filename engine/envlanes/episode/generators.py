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

import numpy as np

SEED = "_np_random_seed"  # attribute of gymnasium's environments
_MOST_LAYERS = 100  # wrappers that are followed: an environment's `env` may lead back to itself

Path = tuple[Any, ...]  # attributes and keys, from the outermost wrapper on
State = Sequence[tuple[Path, Any]]


def states(env: Any, of_spaces: bool = False) -> State:
    """The states of an environment's generators, or of its spaces' alone, which a seeded reset leaves as they are.

    Gymnasium makes those of an environment and of a space when they are first used; they are made now.
    """
    if not of_spaces:
        getattr(getattr(env, "unwrapped", env), "np_random", None)
    found: list[tuple[Path, Any]] = []
    path: Path = ()
    # From the outermost wrapper inwards, along the attribute by which gymnasium's wrappers hold the next one.
    while env is not None and len(path) < _MOST_LAYERS:
        attributes = _attributes(env)
        for name, value in attributes.items():
            if name == SEED and not of_spaces:
                found.append(((*path, name), value))
            elif _sort_of(type(value)):  # type: ignore[arg-type]
                found += _generators(value, (*path, name), not of_spaces)
        env, path = attributes.get("env"), (*path, "env")
    return found


def restore(env: Any, found: State) -> None:
    """Restore what :func:`states` returned for an identically built environment."""
    for path, state in found:
        holder = env
        for step in path[:-1]:
            holder = holder[step] if isinstance(holder, dict | list | tuple) else getattr(holder, step)
        if path[-1] == SEED:
            vars(holder)[SEED] = state
            continue
        # In place if it is there: the environment may hold it under a second name.
        present: Any = getattr(holder, path[-1], None)
        if isinstance(state, tuple):
            if present is None:
                present = vars(holder)[path[-1]] = random.Random()
            present.setstate(state)
        elif "has_gauss" in state:
            if present is None:
                present = vars(holder)[path[-1]] = np.random.RandomState()
            present.set_state(state)
        else:
            kind = getattr(np.random, state["bit_generator"])
            if not isinstance(getattr(present, "bit_generator", None), kind):
                present = vars(holder)[path[-1]] = np.random.Generator(kind())
            present.bit_generator.state = state


def _attributes(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", None) or {}


@lru_cache(maxsize=1000)  # every attribute is looked at in every reset without a seed
def _sort_of(kind: Any) -> str:
    """``"generator"``, ``"space"``, or "" for a class of other values."""
    if issubclass(kind, np.random.Generator | np.random.RandomState) or kind is random.Random:
        return "generator"
    return "space" if hasattr(kind, "contains") and hasattr(kind, "sample") else ""


def _generators(value: Any, path: Path, counts: bool) -> Iterator[tuple[Path, Any]]:
    """The state of a generator, if it counts, or of those of a space and the spaces in it."""
    sort = _sort_of(type(value))  # type: ignore[arg-type]
    if sort == "generator" and counts:
        if isinstance(value, random.Random):
            yield path, value.getstate()
        elif isinstance(value, np.random.RandomState):
            yield path, value.get_state(legacy=False)
        else:
            yield path, value.bit_generator.state  # a new dictionary, with new arrays, for each of NumPy's kinds
    if sort != "space":
        return
    getattr(value, "np_random", None)  # makes it, if the space has not been sampled yet
    for name, part in _attributes(value).items():
        if _sort_of(type(part)):  # type: ignore[arg-type]
            yield from _generators(part, (*path, name), True)
        if name == "spaces":
            for key, space in part.items() if isinstance(part, dict) else enumerate(part):
                yield from _generators(space, (*path, name, key), True)
