"""Environment classes by name, imported on first use.

There are four ways to name a class: the built-in names, :func:`register_env`, a ``"package.module:Class"`` path used
directly as ``env_type``, and entry points in the group ``ragen.envs``. Older code may also add classes directly to
``REGISTERED_ENVS`` and ``REGISTERED_ENV_CONFIGS``, which behave as dicts of classes.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

from ragen.errors import UnknownEnvError, described_with_place, did_you_mean, nearest, suggestion, where_sought

ENTRY_POINT_GROUP = "ragen.envs"

ClassOrPath = type | str


class LazyClasses(UserDict[str, Any]):
    """A dict of classes; values given as ``"package.module:Class"`` are imported on first access."""

    def __getitem__(self, name: str) -> type:
        """The class of this name, imported on first access.

        Raises:
            KeyError: The name is unknown.
            UnknownEnvError: The name's path cannot be imported.
        """
        entry: ClassOrPath = self.data[name]
        if isinstance(entry, str):
            entry = self.data[name] = import_class(entry)
        return entry


_BUILTIN = re.findall(
    r"(\w+):(\w+)",
    "alfworld:AlfWorld bandit:Bandit code:Code countdown:Countdown deepcoder:DeepCoder frozen_lake:FrozenLake "
    "game_2048:Game2048 metamathqa:MetaMathQA miniwob:MiniWob openenv:OpenEnv rubikscube:RubiksCube search:Search "
    "sokoban:Sokoban sudoku:Sudoku terminal:Terminal textworld:TextWorld webshop:WebShop",
)
"""The types, and the beginning of their classes' names."""

REGISTERED_ENVS = LazyClasses({name: f"ragen.env.{name}.env:{stem}Env" for name, stem in _BUILTIN})
REGISTERED_ENV_CONFIGS = LazyClasses({name: f"ragen.env.{name}.config:{stem}EnvConfig" for name, stem in _BUILTIN})


def register_env(name: str, env: ClassOrPath, config: ClassOrPath | None = None) -> None:
    """Register an environment under a name, in this process and in its workers.

    Args:
        name: The name for ``custom_envs.<Tag>.env_type``.
        env: The class, or its ``"package.module:Class"`` path, which is imported on first use.
        config: Its configuration dataclass, likewise; None: the class's ``config_class``.

    Raises:
        UnknownEnvError: A path is not of the form ``package.module:Class``.
    """
    for entry in (env, config):
        if isinstance(entry, str):
            _split_path(entry)
    REGISTERED_ENVS[name] = env
    if config is not None:
        REGISTERED_ENV_CONFIGS[name] = config
    else:
        REGISTERED_ENV_CONFIGS.data.pop(name, None)  # of the dict inside, which imports nothing


def registered_names() -> list[str]:
    """The names of all registered types, without the paths that are known only since they were used in this process."""
    return [name for name in REGISTERED_ENVS if ":" not in name]


def known_names() -> list[str]:
    """The names of all registered types and of those that other installed packages add by entry points."""
    return list(dict.fromkeys([*registered_names(), *sorted(_entry_points())]))


def resolve_env(env_type: str) -> tuple[type, type | None]:
    """The environment class of a type and its configuration class.

    Args:
        env_type: A registered name, the name of an entry point, or a ``"package.module:Class"`` path.

    Returns:
        The class, and its configuration class or None if it declares none.

    Raises:
        UnknownEnvError: There is no such type, or its module or class cannot be imported.
    """
    if env_type in REGISTERED_ENVS:
        env = REGISTERED_ENVS[env_type]
    else:
        env = import_class(env_type if ":" in env_type else _entry_point(env_type))
        REGISTERED_ENVS[env_type] = env  # after the import, so that only working names are suggested
    if env_type in REGISTERED_ENV_CONFIGS:
        return env, REGISTERED_ENV_CONFIGS[env_type]
    return env, getattr(env, "config_class", None)


def import_class(path: str) -> type:
    """Import the class that a ``"package.module:Class"`` path names.

    Raises:
        UnknownEnvError: The path is malformed, or its module or class cannot be imported; the import's own
            exception is the cause.
    """
    module_name, class_name = _split_path(path)
    if not all(part.isidentifier() for part in module_name.split(".")):
        meant = suggestion([f"{Path(module_name).stem}:{class_name}"])
        raise UnknownEnvError(f"cannot import environment class {path!r}: a module is named, not a file.{meant}")
    try:
        found = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except Exception as error:
        meant = where_sought(module_name, error)
        if module_name in sys.modules:
            names = nearest(class_name, list(vars(sys.modules[module_name])))
            meant = suggestion(f"{module_name}:{each}" for each in names) or meant
        raise UnknownEnvError(
            f"cannot import environment class {path!r}: {described_with_place(error)}.{meant}"
        ) from error
    if not isinstance(found, type):
        raise UnknownEnvError(f"{path!r} is a {type(found).__name__}, not a class.")
    return found


def _split_path(path: str) -> tuple[str, str]:
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name:
        raise UnknownEnvError(f"{path!r} is not of the form 'package.module:Class'.")
    return module_name, class_name


def _entry_points() -> dict[str, str]:
    """The paths of the classes that installed packages add, by name."""
    from importlib import metadata  # imported late, since it is a fifth of a worker's imports and rarely needed

    return {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _entry_point(name: str) -> str:
    if found := _entry_points().get(name):
        return found
    hint = (
        f" Known: {', '.join(sorted(known_names()))}. Add others with register_env, a 'package.module:Class' "
        f"path or an entry point in {ENTRY_POINT_GROUP!r}."
    )
    advice = did_you_mean(name, known_names()) or hint
    raise UnknownEnvError(f"unknown environment type {name!r}.{advice}")
