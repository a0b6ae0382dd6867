"""Reads which of RAGEN's ways to choose groups a configuration asks for."""

from __future__ import annotations

from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.filtering.best_share import FILTER_TYPES, BestShare
from ragen.llm_agent.filtering.group_filter import GroupFilter
from ragen.llm_agent.filtering.keys import filter_key
from ragen.settings import choice, count, number

Choice = GroupFilter | BestShare
EMPTY_STOP = 10  # steps of which no group is left, one after the other


def read_filter(config: Any) -> Choice:
    """RAGEN-2's choice where its strategy or value is set, else that of 2025, which by default keeps all groups.

    Raises:
        ConfigError: A key has a value that cannot work, or both ways are asked for.
    """
    newer = GroupFilter.read(config)
    ratio_key, type_key = (filter_key(config, name) for name in ("ratio", "type"))
    ratio = number(config, ratio_key, 1.0, 0.0, 1.0)
    if ratio == 0:
        raise ConfigError(f"configuration key {ratio_key!r} is 0; expected a share above 0, 1 keeps all groups.")
    if newer is None:
        return BestShare(ratio, choice(config, type_key, "std", FILTER_TYPES))
    if ratio != 1:
        raise ConfigError(
            f"configuration key {ratio_key!r} is {ratio:g} beside rollout_filter_strategy or rollout_filter_value; "
            "expected one of the two ways to choose groups, that of 2025 or that of 2026."
        )
    return newer


def read_empty_stop(config: Any) -> int:
    """After how many steps of which no group is left, one after the other, a training stops (RAGEN-2); 0 for none.

    Raises:
        ConfigError: It is no whole number of at least 0.
    """
    return count(config, filter_key(config, "empty_stop_steps"), EMPTY_STOP)
