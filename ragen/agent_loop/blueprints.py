"""What builds an environment of each tag, for whoever opens environments one by one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ragen.llm_agent.config.environments import EnvEntry, read_config

_ENGINE_SECTIONS = ("es_manager", "custom_envs")


class Blueprints:
    """What builds an environment of each tag, read when a tag is first asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config: dict[str, Any] = {name: config.get(name) for name in _ENGINE_SECTIONS}
        self._entries: dict[str, EnvEntry] = {}
        self._group_numbers: dict[tuple[str, str], int] = {}

    def entry(self, tag: str) -> EnvEntry:
        """The tag's entry, with a configuration object of its own each time."""
        if tag not in self._entries:
            part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": [tag], "n_groups": [1]}}
            es_manager = {**self._config["es_manager"], "train": part}
            self._entries[tag] = read_config({**self._config, "es_manager": es_manager}, "train").entries[0]
        entry = self._entries[tag]
        return replace(entry, spec=replace(entry.spec, config=copy.deepcopy(entry.spec.config)))

    def number(self, tag: str, mode: str) -> int:
        """What tells the groups of this tag and mode from others of the same seed."""
        return self._group_numbers.setdefault((tag, mode), len(self._group_numbers))
