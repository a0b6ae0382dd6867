"""Configurations: the keys, how files are found, and that each wrong key is refused before anything runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf

from ragen.config.loading import as_config, config_directory, config_names
from ragen.errors import ConfigError
from support.configurations import composed

FILES = config_names()
ANY_KEY = ("actor.vllm", "actor.openai.request", "custom_envs", "defaults")


@cache
def plain(name: str) -> dict[str, Any]:
    return OmegaConf.to_container(composed(name), resolve=True)


def keys_of(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in section.items():
        if f"{above}{name}" != "defaults":
            yield f"{above}{name}"
            yield from keys_of(value, f"{above}{name}.") if isinstance(value, Mapping) else ()


def shipped_keys() -> list[tuple[str, str]]:
    """Every key of every file, once, with the name of a configuration that has it."""
    found: dict[str, str] = {}
    for name in sorted(FILES, key=lambda each: (each != "envs", each)):
        for key in keys_of(OmegaConf.to_container(OmegaConf.load(config_directory() / f"{name}.yaml"))):
            found.setdefault(key, "base" if name == "envs" else name)
    return sorted(found.items())


def misspelt(config: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy in which the last letter of a key is another one."""
    changed = copy.deepcopy(config)
    *above, name = key.split(".")
    section = changed
    for part in above:
        section = section[part]
    section[f"{name[:-1]}{'x' if name[-1] != 'x' else 'y'}"] = section.pop(name)
    return changed


@pytest.mark.parametrize("name", [each for each in FILES if each != "envs"])
def test_every_shipped_configuration_is_accepted(name):
    assert as_config(composed(name)).es_manager.val.env_configs.tags


def test_every_shipped_key_with_one_letter_changed_is_refused_with_the_key_that_was_meant():
    accepted = []
    for key, name in shipped_keys():
        section, _, last = key.rpartition(".")
        if section in ANY_KEY or ".env_config." in key or (section and last not in _section(plain(name), section)):
            continue
        try:
            as_config(misspelt(plain(name), key))
        except ConfigError as error:
            assert repr(key) in str(error), error
        else:
            accepted.append(key)
    assert accepted == []


def _section(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config
