"""Snapshots of gymnasium's environments: of classes that declare ``save`` and ``load``, and built-in ones.

Built-in are MuJoCo's (the state of the integrator, and everything computed from it) and Atari's: ALE clones its state
with its generator, which is in C++ and can be saved in no other way. It does not clone the last executed action, which
a sticky action repeats, so snapshots of Atari are taken only after a reset.

A snapshot holds one state per layer: the environment and each of its wrappers. The state of gymnasium's wrappers is in
their attributes; any other wrapper must declare ``save`` and ``load`` too, since its state may be anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_WRAPPERS = ("gymnasium.wrappers.", "ale_py.")
_BUILT = ("env", "spec", "action_space", "observation_space", "metadata")  # attributes that building sets


class _Ready(NamedTuple):
    save: Callable[[Any], Any]
    load: Callable[[Any, Any], None]
    is_midway: bool = True  # whether of any moment, or of the one after a reset alone


def can_save(env: Any) -> bool:
    """Whether snapshots of an environment and all its wrappers are supported."""
    return all(_of(layer) is not None for layer in _layers(env))


def has_native_generator(env: Any) -> bool:
    """Whether a native generator, inaccessible from Python, decides its episodes: Atari's."""
    return _is_atari(_layers(env)[-1])


def are_midway(env: Any) -> bool:
    """Whether snapshots may be taken at any time, not only after a reset."""
    return all(_known(layer).is_midway for layer in _layers(env))


def save(env: Any) -> list[Any]:
    """The state of each layer, the outermost wrapper first."""
    return [_known(layer).save(layer) for layer in _layers(env)]


def load(env: Any, states: list[Any]) -> None:
    """Restore a result of :func:`save` in an identically built environment."""
    for layer, state in zip(_layers(env), states, strict=True):
        _known(layer).load(layer, state)


def _layers(env: Any) -> list[Any]:
    found = [env]
    while hasattr(type(found[-1]), "unwrapped") and "env" in vars(found[-1]):
        found.append(vars(found[-1])["env"])
    return found


def _known(layer: Any) -> _Ready:
    ready = _of(layer)
    assert ready is not None
    return ready


def _of(layer: Any) -> _Ready | None:
    """How a layer is saved; None if unknown."""
    kind = type(layer)
    if {"save", "load"} <= vars(kind).keys():
        return _Ready(lambda each: each.save(), lambda each, state: each.load(state))
    if "env" in vars(layer):
        return _ATTRIBUTES if kind.__module__.startswith(_WRAPPERS) else None
    if _is_atari(layer):
        return _ATARI
    is_mujoco = any(base.__name__ == "MujocoEnv" and "mujoco" in base.__module__ for base in kind.__mro__)
    return _MUJOCO if is_mujoco and kind.__module__.startswith("gymnasium.envs.mujoco.") else None


def _is_atari(layer: Any) -> bool:
    return (type(layer).__module__, type(layer).__name__) == ("ale_py.env", "AtariEnv")


def _attributes(layer: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    return {name: value for name, value in vars(layer).items() if name not in _BUILT and name not in without}


def _put_attributes(layer: Any, state: dict[str, Any]) -> None:
    vars(layer).update(state)


def _save_atari(env: Any) -> Any:
    return env.clone_state(include_rng=True), _attributes(env, ("ale",))


def _load_atari(env: Any, state: Any) -> None:
    native, attributes = state
    _put_attributes(env, attributes)
    env.restore_state(native)


def _save_mujoco(env: Any) -> Any:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    integrated = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, integrated, kind)
    computed = {name: array.copy() for name, array in _arrays(env.data)}
    return integrated, computed, _attributes(env, ("model", "data", "mujoco_renderer"))


def _load_mujoco(env: Any, state: Any) -> None:
    import mujoco

    integrated, computed, attributes = state
    _put_attributes(env, attributes)
    mujoco.mj_setState(env.model, env.data, integrated, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(env.model, env.data)
    mujoco.mj_setState(env.model, env.data, integrated, mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, array in _arrays(env.data):  # values computed before the last integration, which rewards use
        if name in computed and computed[name].shape == array.shape:
            array[...] = computed[name]


def _arrays(data: Any) -> list[tuple[str, np.ndarray]]:
    """The arrays of a simulation, all of a fixed size."""
    names = [name for name in dir(data) if not name.startswith(("_", "efc_", "iefc_", "contact"))]
    found = [(name, value) for name in names if isinstance(value := getattr(data, name, None), np.ndarray)]
    return [(name, value) for name, value in found if value.size and value.flags.writeable]


_ATTRIBUTES = _Ready(_attributes, _put_attributes)
_ATARI = _Ready(_save_atari, _load_atari, is_midway=False)
_MUJOCO = _Ready(_save_mujoco, _load_mujoco)
