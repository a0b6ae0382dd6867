"""From a type's name to what its environments are built of, checked before anything is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ragen.container.game import ACTIONS
from ragen.env.fields import check_kinds
from ragen.env.registry import resolve_env
from ragen.errors import ConfigError, InputError
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.values import copied

SEED_LIMIT = 2**32


def env_specs(env_type: str, env_num: int, group_n: int, env_kwargs: Mapping[str, Any] | None = None) -> list[EnvSpec]:
    """Specs of environments of one type, groups one after the other.

    Raises:
        UnknownEnvError: There is no such type.
        ConfigError: It has no such field, or a value cannot work.
    """
    env_class, config_class = resolve_env(env_type)
    fields = dict(env_kwargs or {})
    configs = _configs(env_type, config_class, fields)
    specs = [
        EnvSpec(i, i // group_n, env_type, env_type, env_class, config, ACTIONS)
        for i, config in zip(range(env_num * group_n), configs, strict=False)
    ]
    for spec in specs[:1]:  # all others have the same
        check_kinds("env_kwargs.", env_type, spec.config, fields)
    return specs


def _configs(env_type: str, config_class: Any, fields: dict[str, Any]) -> Iterator[Any]:
    if config_class is None and fields:
        raise ConfigError(f"env_kwargs = {fields!r}: {env_type!r} has no configuration class, so it takes none.")
    if dataclasses.is_dataclass(config_class):
        known = sorted(each.name for each in dataclasses.fields(config_class) if each.init)
        for name in fields:
            if name not in known:
                raise ConfigError(f"env_kwargs.{name}: {env_type!r} has no such field; it has {', '.join(known)}.")
    while True:
        try:
            yield None if config_class is None else config_class(**copied(fields))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"env_kwargs = {fields!r}: {error}") from error


def checked_seed(seed: Any) -> int:
    """A seed as an int.

    Raises:
        InputError: It is no integer from 0 to 2**32 - 1.
    """
    if isinstance(seed, np.integer):
        seed = int(seed)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
        raise InputError(f"seed = {seed!r}: expected an integer from 0 to 2**32 - 1.")
    return seed
