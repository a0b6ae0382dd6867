"""Methods and attributes of sub-environments, asked for where they live, and their actions."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import iterate

from ragen.games.gym_game import CHECK, DESCRIBE, GYM, IS_WRAPPED, NOT_TO_CALL, READ, Description, IsMethod
from ragen.games.gym_old import GYM_OLD
from ragen.parallel import EnvEngine, EnvSpec
from ragen.parallel.episode.journal import Change
from ragen.parallel.episode.values import copied
from ragen.vector.env_fn import EnvFn


def spec_of(build: EnvFn, index: int, old_api: bool = False, overlap_waits: bool = False) -> EnvSpec:
    """What the engine has to know of a sub-environment."""
    game = GYM_OLD if old_api else GYM
    return EnvSpec.of(build, env_id=index, tag="env", game=game, overlap_waits=overlap_waits)


def descriptions(engine: EnvEngine, count: int | None) -> list[Description]:
    """Spaces and metadata of the first ``count`` sub-environments, or of all."""
    ids = list(engine.records)[:count]
    return list(_values(engine.read(ids, DESCRIBE)))


def metadata(description: Description) -> dict[str, Any]:
    """The metadata of a sub-environment, a copy."""
    return pickle.loads(description.metadata)


def fits(engine: EnvEngine, is_same: bool, shared: bytes) -> list[tuple[bool, bool]]:
    """Whether each sub-environment has these spaces; see :meth:`ragen.games.gym_game.GymGame.check`."""
    return list(_values(engine.read(engine.records, CHECK, is_same, shared)))


def call_all(
    engine: EnvEngine, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], ids: Sequence[int] | None = None
) -> tuple[Any, ...]:
    """Call a method of all or of some, which is journalled."""
    refuse(name)
    return _values(engine.call(engine.records if ids is None else ids, name, *copied(args), **copied(dict(kwargs))))


def read_all(engine: EnvEngine, name: str, calls: bool = False, ids: Sequence[int] | None = None) -> tuple[Any, ...]:
    """Read an attribute of all or of some; not journalled, unless it turns out to be a method.

    Args:
        engine: Their engine.
        name: Of the attribute.
        calls: Whether it is known to be a method that changes nothing.
        ids: Of which sub-environments; None for all.
    """
    refuse(name)
    ids = list(engine.records if ids is None else ids)
    if calls:
        return _values(engine.read(ids, name))
    found = _values(engine.read(ids, READ, name))
    return call_all(engine, name, (), {}, ids) if any(type(each) is IsMethod for each in found) else found


def are_wrapped(engine: EnvEngine, wrapper: type, ids: Sequence[int]) -> tuple[bool, ...]:
    """Whether an instance of a class is among each of some sub-environments and what they wrap."""
    return _values(engine.read(ids, IS_WRAPPED, wrapper))


def set_all(engine: EnvEngine, name: str, values: Mapping[int, Any]) -> None:
    """Set an attribute of each to a value of its own."""
    _values(engine.change({i: Change(name, (copied(value),), is_set=True) for i, value in values.items()}))


def refuse(name: str) -> None:
    """Refuse to call what would go past the books that are kept of episodes.

    Raises:
        ValueError: It is one of those.
    """
    if name in NOT_TO_CALL:
        raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")


def actions_of(space: Space[Any], actions: Any, count: int) -> list[Any]:
    """One action for each of ``count`` sub-environments, which the caller's array may change later.

    Raises:
        ValueError: There are fewer or more.
        TypeError: What was given cannot be taken apart.
    """
    each = list(iterate(space, actions.copy() if isinstance(actions, np.ndarray) else copied(actions)))
    if len(each) != count:
        raise ValueError(f"expected an action for each of {count} environments, got {len(each)}; none was stepped.")
    return each


def _values(found: Mapping[int, Any]) -> tuple[Any, ...]:
    """What environments gave, in order.

    Raises:
        Exception: What the first of those raised that did.
    """
    for value in found.values():
        if isinstance(value, Exception):
            cause = value.__cause__
            if isinstance(cause, Exception):
                cause.add_note(str(value))
                raise cause
            raise value
    return tuple(found.values())
