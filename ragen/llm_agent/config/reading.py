"""Reads settings and says at once which value cannot work."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import setting

D = TypeVar("D")


def number(config: Any, key: str, default: D, low: float | None = None, high: float | None = None) -> float | D:
    """A number at a dotted key.

    Args:
        config: The whole configuration.
        key: The key.
        default: The value where the key is absent.
        low: The smallest value that works.
        high: The largest value that works.

    Raises:
        ConfigError: The value is no number, or out of bounds.
    """
    return _bounded(key, setting(config, key, float, default), low, high)


def count(config: Any, key: str, default: D, low: int = 0, high: int | None = None) -> int | D:
    """A whole number at a dotted key; see :func:`number`."""
    return _bounded(key, setting(config, key, int, default), low, high)


def choice(config: Any, key: str, default: str, allowed: Collection[str]) -> str:
    """A text at a dotted key, one of those allowed.

    Raises:
        ConfigError: It is none of them.
    """
    value = setting(config, key, str, default)
    if value not in allowed:
        raise ConfigError(f"configuration key {key!r} is {value!r}; expected one of {', '.join(allowed)}.")
    return value


def texts(config: Any, key: str, default: Collection[str], allowed: Collection[str]) -> tuple[str, ...]:
    """A list of texts at a dotted key, each one of those allowed.

    Raises:
        ConfigError: It is no list, or one of them is not allowed.
    """
    from omegaconf import ListConfig

    values = tuple(setting(config, key, (list, tuple, ListConfig), list(default)))
    for value in values:
        if value not in allowed:
            raise ConfigError(f"configuration key {key!r} has {value!r}; expected some of {', '.join(allowed)}.")
    return values


def _bounded(key: str, value: Any, low: float | None, high: float | None) -> Any:
    if value is None:
        return None
    if (low is not None and value < low) or (high is not None and value > high):
        raise ConfigError(f"configuration key {key!r} is {value}; expected {_bounds(low, high)}.")
    return value


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"a number from {low:g} to {high:g}"
    return f"at least {low:g}" if low is not None else f"at most {high:g}"


def plain_sections(config: Any, wanted: Collection[str]) -> dict[str, Any]:
    """Some of a configuration's sections as plain Python, resolved within the whole; of the others nothing is asked.

    Args:
        config: The whole configuration.
        wanted: Their names; those that it does not have are left out.
    """
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.create(config)
    found = {str(name): whole[name] for name in whole if name in wanted}
    return {
        name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for name, value in found.items()
    }
