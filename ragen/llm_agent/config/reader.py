"""Reads dotted keys of the sections that environments are made of, and says which one is wrong and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.generation import Generation

_REQUIRED = object()


class Reader:
    """Looks up dotted keys, and says which one is wrong and how.

    Attributes:
        generation: Which RAGEN is meant.
        max_turn: ``agent_proxy.max_turn``; None where there is none, or none that could be: its reader tells of that.
    """

    def __init__(self, config: Any) -> None:
        """Read of this configuration, Hydra's or nested dicts, what environments are made of."""
        self._config = _plain(config)
        self.generation = Generation.read(config)
        self.max_turn = _max_turn(config)

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value, or the default where the key is missing or null."""
        value = self._config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
            if value is None:
                break
        if value is None and default is _REQUIRED:
            raise ConfigError(f"the configuration lacks {key!r}.")
        return default if value is None else value

    def integer(self, key: str, default: Any = _REQUIRED, minimum: int = 0) -> Any:
        """An integer, of at least ``minimum``."""
        value = self.get(key, default)
        if value is not default and (not is_integer(value) or value < minimum):
            raise ConfigError(f"{key} = {value!r}: expected an integer of at least {minimum}.")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{key} = {value!r}: expected a number.")
        return value

    def seconds(self, key: str, default: float) -> float:
        """A number of seconds greater than 0."""
        value = self.number(key, default)
        if value <= 0:
            raise ConfigError(f"{key} = {value!r}: expected a number of seconds greater than 0.")
        return float(value)

    def choice(self, key: str, choices: tuple[Any, ...], default: Any) -> Any:
        """One of several values."""
        value = self.get(key, default)
        if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
            raise ConfigError(f"{key} = {value!r}: expected one of {', '.join(map(repr, choices))}.")
        return value

    def folder(self, key: str, default: str) -> str | None:
        """A folder's path; None where the key is there and null."""
        section, _, name = key.rpartition(".")
        value = self.get(section, {}).get(name, default)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ConfigError(f"{key} = {value!r}: expected the path of a folder, or null for none.")
        return value

    def texts(self, key: str, default: Any = _REQUIRED) -> list[str]:
        """A list of texts."""
        value = self.get(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
            raise ConfigError(f"{key} = {value!r}: expected a list of names.")
        return list(value)


def _plain(config: Any) -> Any:
    """The configuration as dicts and lists, interpolations resolved; only the sections that are read.

    Raises:
        ConfigError: A section is no mapping.
    """
    sections = {}
    for name in ("es_manager", "custom_envs", "seed"):
        value = config.get(name) if hasattr(config, "get") else getattr(config, name, None)
        if value is not None and not isinstance(value, dict):
            value = _mapping(name, value)
        sections[name] = value
    return sections


def _max_turn(config: Any) -> int | None:
    from omegaconf.errors import OmegaConfBaseException

    value = config
    for name in ("agent_proxy", "max_turn"):
        try:
            value = value.get(name) if hasattr(value, "get") else getattr(value, name, None)
        except OmegaConfBaseException:  # ``???``, or an interpolation of what is not there
            return None
    return value if is_integer(value) and value > 0 else None


def _mapping(name: str, value: Any) -> Any:
    from omegaconf import OmegaConf

    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        value = dict(vars(value))
    if not isinstance(value, Mapping):
        expected = "a mapping such as {train: 10000, val: 123}" if name == "seed" else "a mapping"
        raise ConfigError(f"{name} = {value!r}: expected {expected}.")
    return value


def is_integer(value: Any) -> bool:
    """Whether it is a whole number, and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)
