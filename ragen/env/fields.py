"""The fields of an environment's configuration: declared types, values of other types, and values as they are typed."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from ragen.env.checks import alternatives
from ragen.env.registry import resolve_env
from ragen.errors import ConfigError, did_you_mean, in_short

_NUMBERS, _LISTS = (bool, int, float, complex), (list, tuple, set, frozenset, Sequence)


def field_types(config_class: Any) -> dict[str, Any]:
    """The types that a dataclass declares, by the names of the fields that it takes; empty for other classes.

    If annotations cannot be read, since they name something that is not imported at run time, each is ``Any``.
    """
    if not is_dataclass(config_class):
        return {}
    try:
        hints = typing.get_type_hints(config_class)
    except Exception:  # an annotation is any expression
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in fields(config_class) if field.init}


def check_kinds(where: str, env_type: str, config: Any, given: Mapping[str, Any]) -> None:
    """See that values can be what their fields are declared to be.

    A number for a number (a whole one for an ``int``) or for a text, a list for a tuple, null, and whatever cannot be
    told pass; so does what the class has made something else of, and a field whose own default is not what it is
    declared to be.

    Args:
        where: Stands before a field's name in the message, such as ``"env_kwargs."``.
        env_type: Environment type of the configuration.
        config: The configuration made of the values.
        given: The values, by name.

    Raises:
        ConfigError: One cannot, such as a text where there is to be a number.
    """
    declared = field_types(type(config)) if given else {}
    defaults = {field.name: field.default for field in fields(config)} if declared else {}
    for name, value in given.items():
        hint = declared.get(name, Any)
        if _may_be(value, hint) or not _may_be(defaults[name], hint):
            continue
        if repr(getattr(config, name, None)) == repr(value):
            raise ConfigError(f"{where}{name} = {in_short(value)}: {env_type!r} expects {_described(hint)}.")


def _described(hint: Any) -> str:
    """A declared type in words."""
    return " or ".join(
        "null" if kind is type(None) else kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        for kind in alternatives(hint)
    )


def _may_be(value: Any, hint: Any) -> bool:
    """Whether a value may be of a declared type, as far as values of a YAML file can be told apart."""
    kind, items = typing.get_origin(hint) or hint, typing.get_args(hint)
    if value is None or kind is type(None):
        return value is None
    if kind in (typing.Union, types.UnionType):
        return any(_may_be(value, each) for each in items)
    if kind is Literal:
        return any(_may_be(value, type(option)) for option in items)
    if kind is int and isinstance(value, float):
        return value.is_integer()
    if kind in _NUMBERS:
        return not isinstance(value, str | list | tuple | Mapping)
    if kind is str:  # numbers are texts as soon as they are shown
        return not isinstance(value, list | tuple | Mapping)
    if kind in (dict, Mapping):
        return not isinstance(value, int | float | str)
    if kind not in _LISTS:
        return True
    items = tuple(each for each in items if each is not Ellipsis)
    if isinstance(value, str):
        return not items or any(_may_be("", each) for each in items)  # a text is a list of its letters
    if kind is tuple and isinstance(value, list | tuple) and len(value) == len(items):
        return all(map(_may_be, value, items))
    return not isinstance(value, int | float)


# Values as they are typed


def build_env(env_type: str, settings: Iterable[str] = ()) -> Any:
    """An environment with some keys of its configuration set.

    Args:
        env_type: A registered name, an entry point's name, or a ``"package.module:Class"`` path.
        settings: ``"key=value"`` each, the value as its key's type is written.

    Raises:
        UnknownEnvError: There is no such type.
        ConfigError: A key is unknown, or a value does not fit.
    """
    env_class, config_class = resolve_env(env_type)
    values = read_settings(env_type, config_class, settings)
    config = config_class(**values) if config_class else values or None
    check_kinds("", env_type, config, values)
    return env_class() if config is None else env_class(config)


def read_settings(env_type: str, config_class: type | None, settings: Iterable[str]) -> dict[str, Any]:
    """Keys of a configuration as they are written on a command line.

    Args:
        env_type: Environment type of the configuration, for messages.
        config_class: The configuration's class; None if it is a dictionary, which takes any key.
        settings: ``"key=value"`` each, the value as its key's type is written.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    known = field_types(config_class)
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"{env_type}: {setting!r} is not of the form key=value.")
        if config_class is not None and key not in known:
            meant = did_you_mean(key, known) or f" There {'are' if known else 'is'} {', '.join(known) or 'none'}."
            raise ConfigError(f"{env_type}: unknown key {key!r}.{meant}")
        values[key] = _value(text, known.get(key, Any))
    return values


def _value(text: str, hint: Any) -> Any:
    """A value as JSON, such as ``true`` or ``8,8`` for a list; a text where one is declared, or it is no JSON."""
    if text != "null" and str in alternatives(hint):
        return text
    for json_text in (text, f"[{text}]"):
        try:
            value = json.loads(json_text)
        except ValueError:
            continue
        origins = [typing.get_origin(kind) or kind for kind in alternatives(hint)]
        return tuple(value) if tuple in origins and isinstance(value, list) else value
    return text
