"""Configuration: reading of keys, settings as dataclasses, and messages for invalid values.

A configuration is Hydra's, or nested mappings. A key is dotted: ``agent_proxy.max_turn``. Settings are dataclasses,
whose fields define their keys and valid values::

    @dataclass(frozen=True)
    class WarmUpSettings:
        SECTION: ClassVar[str] = "warm_up"
        steps: int = key(300, low=0)                       # warm_up.steps
        lr: float = key(3e-3, "warm_up.optim.lr", low=0)

    settings = read(WarmUpSettings, config)

OmegaConf handles interpolations, mandatory values, and its own types. Its structured configs are not used to check
values: they silently accept ``"5"`` for 5 and ``yes`` for true, and support neither bounds, nor choices, nor tuples.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ragen.errors import ConfigError, described_with_place, did_you_mean, in_short, one_line, where_sought
from ragen.files import config_directory  # noqa: F401

T = TypeVar("T")
D = TypeVar("D")
Kind = type | tuple[type, ...]

_REQUIRED: Any = object()
_ABSENT: Any = object()
_ITS_TURN: Any = object()  # OmegaConf's
_OF_MANAGERS = ("es_manager", "custom_envs", "seed")
"""Sections whose messages read ``key = value: expected ..``, like those of the settings' constructors."""
_EXAMPLES = {
    "actor.model": "gpt-4o-mini, and for a server of your own actor.base_url=http://localhost:8000/v1",
    "actor.base_url": "http://localhost:8000/v1",
}
_NO_RULES = {"allowed": None, "low": None, "high": None, "is_seconds": False}
_NAMED = re.compile(r"Missing mandatory value: ([\w.]+)")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "Mapping": "a section of keys, such as {key: value}",
    **dict.fromkeys(("Sequence", "list", "tuple", "ListConfig"), "a list"),
    "NoneType": "null",
}


# Messages


def refused(key: str, value: Any, expected: str, meant: str = "") -> ConfigError:
    """The error for a key with an invalid value.

    Args:
        key: The dotted key.
        value: The value.
        expected: A description of valid values.
        meant: A suggestion, to follow the message; see :func:`.did_you_mean`.
    """
    value = Shown("null") if value is None else value
    if key.partition(".")[0] in _OF_MANAGERS:
        return ConfigError(f"{key} = {in_short(value)}: expected {expected}.{meant}")
    return ConfigError(f"configuration key {key!r} is {in_short(value)}; expected {expected}.{meant}")


def refuse_unknown(given: Iterable[Any], known: Collection[str], where: str = "") -> None:
    """Check that all keys of a section are known.

    Args:
        given: The keys.
        known: The known keys.
        where: Prefix of the keys in the message, such as ``"ppo."``.

    Raises:
        ConfigError: A key is unknown; the message suggests a similar one.
    """
    for name in map(str, given):
        if name not in known:
            meant = did_you_mean(name, known, lambda near: where + near) or f" There are {', '.join(known)}."
            raise ConfigError(f"unknown configuration key {where + name!r}.{meant}")


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


def function_at(name: str, where: str) -> Any:
    """A user's function by its import path, ``package.module:function``; see :func:`object_at`.

    Raises:
        ConfigError: It cannot be imported, or is not a function.
    """
    found = object_at(name, where, "FUNCTION")
    if not callable(found):
        raise ConfigError(f"{where} is {name!r}, which is not a function.")
    return found


def _kind_name(kind: Kind, key: str) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if kind is int and key.partition(".")[0] in _OF_MANAGERS:
        return "an integer"
    return " or ".join(dict.fromkeys(_KINDS.get(one.__name__, one.__name__) for one in kinds))


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"a number from {low:g} to {high:g}"
    return f"at least {low:g}" if low is not None else f"at most {high:g}"


# Values


def setting(config: Any, key: str, kind: Kind, default: Any = _REQUIRED) -> Any:
    """The value at a dotted key.

    Args:
        config: The whole configuration.
        key: Such as ``agent_proxy.max_turn``.
        kind: The required type; an int is accepted for a float.
        default: Returned if the key or a section above it is absent or null.

    Raises:
        ConfigError: The key is missing and has no default, or its value is of another type, or not a finite number; or
            its parent is not a section.
    """
    value = _value_at(config, key)
    if value is None or value is _ABSENT:
        if default is not _REQUIRED:
            return default
        if key.partition(".")[0] in _OF_MANAGERS:
            raise ConfigError(f"the configuration lacks {key!r}.")
        null = next((above for above in _above(key) if _value_at(config, above) is None), "")
        reason = f", since {null!r} is null" if null else ""
        raise ConfigError(f"configuration key {key!r} is missing{reason}; expected {_kind_name(kind, key)}.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, float)):
        raise refused(key, value, _kind_name(kind, key))
    if isinstance(value, float) and not math.isfinite(value):
        raise refused(key, value, "a finite number")
    return value


def number(config: Any, key: str, default: D, low: float | None = None, high: float | None = None) -> float | D:
    """A number at a dotted key.

    Args:
        config: The whole configuration.
        key: The key.
        default: The value if the key is absent.
        low: The minimum.
        high: The maximum.

    Raises:
        ConfigError: The value is not a number, or out of bounds.
    """
    return _bounded(key, setting(config, key, float, default), low, high)


def seconds(config: Any, key: str, default: float) -> float:
    """A number of seconds greater than 0; see :func:`number`."""
    value = setting(config, key, float, default)
    if value <= 0:
        raise refused(key, Shown(f"{value:g}"), "a number of seconds greater than 0")
    return value


def count(config: Any, key: str, default: Any = _REQUIRED, low: int | None = 0, high: int | None = None) -> Any:
    """A whole number at a dotted key; see :func:`number`."""
    return _bounded(key, setting(config, key, int, default), low, high)


def choice(config: Any, key: str, default: Any, allowed: Collection[Any]) -> Any:
    """A value at a dotted key, one of those allowed.

    Raises:
        ConfigError: It is not one of them.
    """
    value = setting(config, key, object, default)
    for each in allowed:
        if value is each or (isinstance(each, str) and value == each):
            return value
    texts_alone = all(isinstance(each, str) for each in allowed)
    show = str if texts_alone and key.partition(".")[0] not in _OF_MANAGERS else _as_yaml
    names = [each if isinstance(each, str) else _as_yaml(each) for each in allowed]
    meant = did_you_mean(str(value), names)
    raise refused(key, value, f"one of {', '.join(map(show, allowed))}", meant)


def _as_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def texts(config: Any, key: str, default: Any, allowed: Collection[str] | None = None) -> tuple[str, ...]:
    """A list of texts at a dotted key, each one of those allowed, if these are given.

    Raises:
        ConfigError: It is not a list, or one of them is not allowed.
    """
    values = setting(config, key, _lists(), default)
    for value in values:
        if not isinstance(value, str):
            raise refused(key, list(values), "a list of names")
        if allowed is not None and value not in allowed:
            known, meant = ", ".join(allowed), did_you_mean(value, allowed)
            raise ConfigError(f"configuration key {key!r} has {value!r}; expected some of {known}.{meant}")
    return tuple(values)


def section(config: Any, key: str) -> dict[str, Any]:
    """A section as plain Python; empty if the key is absent or null.

    Raises:
        ConfigError: It is not a section.
    """
    return dict(plain(setting(config, key, Mapping, {})))


def plain(value: Any) -> Any:
    """A value as plain Python, interpolations resolved."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _bounded(key: str, value: Any, low: float | None, high: float | None) -> Any:
    if value is not None and ((low is not None and value < low) or (high is not None and value > high)):
        raise refused(key, value, _bounds(low, high))
    return value


class Shown(str):
    """A text that messages show without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _lists() -> tuple[type, ...]:
    from omegaconf import ListConfig

    return list, tuple, ListConfig


# Finding values


def _above(key: str) -> list[str]:
    """The sections above a key, from the top."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _value_at(config: Any, key: str) -> Any:
    """The value at a dotted key, interpolations resolved, containers as OmegaConf's; ``_ABSENT`` if there is none."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        if not OmegaConf.is_config(config):
            found = _walk(config, key)
            if found is not _ITS_TURN and _is_plain(found):
                return OmegaConf.create(found) if isinstance(found, dict | list) else found
            if found is _ABSENT:
                return found
            config = OmegaConf.create(config)
        found = OmegaConf.select(config, key, throw_on_missing=True, default=_ABSENT)
    except OmegaConfBaseException as error:
        message = _missing_message(key, error) or f"configuration key {key!r} cannot be read: {one_line(error)}"
        raise ConfigError(message) from error
    if found is _ABSENT:
        for above in _above(key):
            value = OmegaConf.select(config, above, default=None)
            if value is not None and not isinstance(value, Mapping):
                raise refused(above, value, _section_name(above))
    return found


def _walk(config: Any, key: str) -> Any:
    """The value in plain mappings, which are not converted to OmegaConf's, since that is slow for large ones."""
    from omegaconf import OmegaConf

    at = ""
    for part in key.split("."):
        if config is None:
            return _ABSENT
        if OmegaConf.is_config(config) or "[" in part:
            return _ITS_TURN
        if hasattr(config, "__dict__") and not isinstance(config, Mapping | type):
            config = vars(config)
        if not isinstance(config, Mapping):
            raise refused(at, config, _section_name(at))
        if part not in config:
            return _ABSENT
        at, config = f"{at}.{part}".strip("."), config[part]
    return config


def _section_name(key: str) -> str:
    return "a mapping" if key.partition(".")[0] in _OF_MANAGERS else _KINDS["Mapping"]


def _is_plain(value: Any) -> bool:
    """Whether OmegaConf would return the value unchanged."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(inner) for key, inner in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is str:
        return "${" not in value and value != "???"
    return value is None or type(value) in (bool, int, float)


def _missing_message(key: str, error: Exception) -> str | None:
    """The message for a key that is ``???``, or refers to one; None for other errors."""
    from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

    if not isinstance(error, MissingMandatoryValue | InterpolationToMissingValueError):
        return None
    found = _NAMED.search(str(error))
    missing = found[1] if found else key
    since = "" if missing == key else f", since {key!r} needs it"
    return (
        f"configuration key {missing!r} must be given{since}: for example {missing}={_EXAMPLES.get(missing, 'VALUE')}."
    )


# Settings


def key(
    default: Any,
    at: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    allowed: Collection[Any] | None = None,
    is_seconds: bool = False,
) -> Any:
    """A field of settings: its default, its key in a configuration, and its valid values.

    Args:
        default: The value if the key is absent or null.
        at: The dotted key; empty for the field's name in the section of its class.
        low: The minimum.
        high: The maximum.
        allowed: The allowed values.
        is_seconds: Whether it is a number of seconds greater than 0.
    """
    rules = {"at": at, "low": low, "high": high, "allowed": allowed, "is_seconds": is_seconds}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata={"key": rules})
    return dataclasses.field(default=default, metadata={"key": rules})


def read(kind: type[T], config: Any, **known: Any) -> T:
    """Settings from a configuration.

    Args:
        kind: A dataclass whose fields are created by :func:`key`; ``SECTION`` is the section of keys without one.
        config: The whole configuration.
        known: Fields computed elsewhere, or defaults instead of the class's: ``default_NAME``.

    Raises:
        ConfigError: A key has an invalid value.
    """
    hints, values = _hints(typing.cast(Any, kind)), dict[str, Any]()
    for each in dataclasses.fields(typing.cast(Any, kind)):
        if each.name in known:
            values[each.name] = known[each.name]
        elif "key" in each.metadata:
            rules = each.metadata["key"]
            at = rules["at"] or f"{kind.SECTION}.{each.name}"  # type: ignore[attr-defined]
            default = known.get(f"default_{each.name}", _default_of(each))
            values[each.name] = _read(config, at, hints[each.name], default, rules)
    return kind(**values)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(config: Any, at: str, hint: Any, default: Any, rules: Mapping[str, Any]) -> Any:
    kinds = [each for each in _kinds_of(hint) if each is not type(None)]
    allowed = rules["allowed"]
    if tuple in kinds or list in kinds:
        return kinds[0](texts(config, at, default, allowed))
    if allowed is not None:
        return choice(config, at, default, allowed)
    if rules["is_seconds"]:
        return seconds(config, at, default)
    if dict in kinds or Mapping in kinds:
        return section(config, at) or default
    if kinds == [Path]:
        return Path(setting(config, at, str, default))
    value = setting(config, at, kinds[0] if len(kinds) == 1 else tuple(kinds), default)
    return _bounded(at, value, rules["low"], rules["high"])


def _kinds_of(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, types.UnionType):
        return tuple(typing.get_origin(each) or each for each in typing.get_args(hint))
    return (typing.get_origin(hint) or hint,)


# Settings from files


def override_key(override: str) -> str:
    """The key that an override sets, adds or deletes: ``a.b`` of ``a.b=1``, ``+a.b=1``, ``++a.b=1`` and ``~a.b``."""
    return override.lstrip("+~").partition("=")[0]


def load_settings(
    kind: type[T],
    path: Path,
    overrides: Sequence[str] = (),
    translated: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> T:
    """Settings from a YAML file that holds only them; see :func:`settings_of`.

    Args:
        kind: The dataclass.
        path: The file.
        overrides: ``key=value``, keys dotted.
        translated: Applied to the whole configuration first.

    Raises:
        ConfigError: There is no such key, or a value is invalid.
    """
    from omegaconf import OmegaConf

    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override!r}: expected key=value.")
    merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
    plain: Any = OmegaConf.to_container(merged, resolve=True)
    return settings_of(kind, translated(plain))


def settings_of(kind: type[T], config: Any, at: str = "") -> T:
    """Settings from a configuration, or a section of it, that holds only them; nested dataclasses are sections.

    Args:
        kind: The dataclass; keys that the section lacks keep their defaults.
        config: The whole configuration.
        at: The dotted key of the section; empty for the whole.

    Raises:
        ConfigError: There is no such key, or a value has the wrong type or is invalid.
    """
    given, prefix = (section(config, at), f"{at}.") if at else (config, "")
    hints, fields = _hints(typing.cast(Any, kind)), dataclasses.fields(typing.cast(Any, kind))
    refuse_unknown(given, [each.name for each in fields], prefix)
    values = dict[str, Any]()
    for each in fields:
        name, hint = f"{prefix}{each.name}", hints[each.name]
        if dataclasses.is_dataclass(hint):
            values[each.name] = settings_of(typing.cast(type, hint), config, name)
        else:
            values[each.name] = _read(config, name, hint, _default_of(each), each.metadata.get("key", _NO_RULES))
    return kind(**values)
