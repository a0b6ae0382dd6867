"""Settings as dataclasses, read from the keys of a YAML file; and where the package's own files lie."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ragen.errors import ConfigError

T = TypeVar("T")


def config_directory() -> Path:
    """The folder of the configurations that come with the package.

    In a checkout this is ``config/`` at the top of the repository, else ``ragen/config/``, where it is installed.
    """
    package = Path(str(resources.files("ragen")))
    repository = package.resolve().parent
    if (repository / "setup.py").is_file() and (repository / "config" / "base.yaml").is_file():
        return repository / "config"
    return package / "config"


def load_settings(kind: type[T], path: Path, overrides: Sequence[str] = ()) -> T:
    """Settings from a YAML file.

    Args:
        kind: The dataclass.
        path: The file.
        overrides: ``key=value``, keys dotted.

    Raises:
        ConfigError: There is no such key, or a value cannot work.
    """
    from omegaconf import OmegaConf

    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override!r}: expected key=value.")
    merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
    return read_settings(kind, OmegaConf.to_container(merged, resolve=True))


def read_settings(kind: type[T], values: Any, where: str = "") -> T:
    """Settings from keys and values; those whose type is a dataclass are sections.

    Args:
        kind: The dataclass.
        values: A mapping; keys that it lacks keep their defaults.
        where: Stands before its keys in messages, such as ``"ppo."``.

    Raises:
        ConfigError: There is no such key, or a value has another type or cannot work.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where.rstrip('.')} = {values!r}: expected a section.")
    types_of = typing.get_type_hints(kind)
    given = {}
    for key, value in values.items():
        if key not in types_of:
            near = difflib.get_close_matches(str(key), types_of, 1)
            hint = f"{near[0]!r} was meant?" if near else f"there are: {', '.join(types_of)}."
            raise ConfigError(f"there is no configuration key {where + str(key)!r}; {hint}")
        expected = types_of[key]
        is_section = dataclasses.is_dataclass(expected)
        given[key] = (
            read_settings(expected, value, f"{where}{key}.") if is_section else _value(value, expected, f"{where}{key}")
        )
    return kind(**given)


def _value(value: Any, expected: Any, key: str) -> Any:
    kinds = (
        typing.get_args(expected)
        if isinstance(expected, types.UnionType)
        else (typing.get_origin(expected) or expected,)
    )
    if float in kinds and isinstance(value, str):  # YAML takes 1e-3 for a text
        with contextlib.suppress(ValueError):
            value = float(value)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{key} = {value!r}: expected {names}.")
    return value
