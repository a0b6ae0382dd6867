"""Tags: their entries under ``custom_envs``, and the groups of each that a mode of ``es_manager`` asks for."""

from __future__ import annotations

from typing import Any

from envlanes.ragen.settings import TagGroups, read_groups, tag_entry
from ragen.config.loading import as_config


def tag_groups(config: Any, mode: str) -> list[tuple[str, int]]:
    """Each tag with its number of groups; a tag may be listed twice.

    Args:
        config: The whole configuration.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing, or the numbers do not fit the tags or ``env_groups``.
    """
    return [(each.tag, each.count) for each in groups_of(config, mode)]


def groups_of(config: Any, mode: str) -> list[TagGroups]:
    """The groups of each tag; see :func:`tag_groups`."""
    part = as_config(config, ("es_manager",)).select(f"es_manager.{mode}")
    return read_groups({} if part is None else part.model_dump(), f"es_manager.{mode}")


def environment_tags(config: Any, mode: str) -> tuple[dict[int, str], dict[str, int]]:
    """The tag of each environment id, and the number of environments of each tag.

    Args:
        config: The whole configuration.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: See :func:`tag_groups`.
    """
    groups, part = tag_groups(config, mode), getattr(as_config(config, ("es_manager",)).es_manager, mode)
    owners = [tag for tag, count in groups for _ in range(count * part.group_size)]
    return dict(enumerate(owners)), {tag: owners.count(tag) for tag in owners}


def custom_env(config: Any, tag: str) -> dict[str, Any]:
    """The entry of a tag under ``custom_envs``, as plain Python.

    Raises:
        ConfigError: There is none.
    """
    return dict(tag_entry(as_config(config, ("custom_envs",)).custom_envs, tag))
