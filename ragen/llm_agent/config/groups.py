"""Tags: their entries under ``custom_envs``, and the groups of each that a mode of ``es_manager`` asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

from ragen.errors import ConfigError, did_you_mean
from ragen.settings import count, plain, refused, setting, texts
from ragen.statistics import ALL


def tag_groups(config: Any, mode: str) -> list[tuple[str, int]]:
    """Each tag with its number of groups; a tag may be listed twice.

    Without ``n_groups`` the tags share ``env_groups`` equally; a single tag has all of them, whatever its number says.

    Args:
        config: The whole configuration.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing, or the numbers do not fit the tags or ``env_groups``.
    """
    section = f"es_manager.{mode}"
    where, env_groups = f"{section}.env_configs", count(config, f"{section}.env_groups", low=1)
    setting(config, f"{where}.tags", object)
    tags = list(texts(config, f"{where}.tags", ()))
    if ALL in tags:
        raise ConfigError(f"{where}.tags has {ALL!r}, which results call the row over all tags; rename that tag.")
    counts = plain(setting(config, f"{where}.n_groups", object, None))
    if counts is None:
        if not tags or env_groups % len(tags):
            raise ConfigError(f"{where}.n_groups is missing, and {env_groups} groups do not divide among tags {tags}.")
        counts = [env_groups // len(tags)] * len(tags)
    if not isinstance(counts, list | tuple) or not all(type(each) is int and each >= 1 for each in counts):
        raise refused(f"{where}.n_groups", counts, "a list of integers of at least 1")
    if len(tags) == len(counts) == 1:
        counts = [env_groups]
    if not tags or len(tags) != len(counts):
        raise ConfigError(f"{where}: {len(tags)} tags {tags} but {len(counts)} n_groups {list(counts)}; one for each.")
    if sum(counts) != env_groups:
        raise ConfigError(
            f"{where}.n_groups = {list(counts)} adds up to {sum(counts)}, but {section}.env_groups = {env_groups}."
        )
    return list(zip(tags, counts, strict=True))


def first_groups(config: Any, mode: str, groups: list[tuple[str, int]]) -> list[int]:
    """The number of each tag's first group: counted on over all tags, unless ``first_groups`` has them.

    Raises:
        ConfigError: The key has an invalid value.
    """
    key = f"es_manager.{mode}.env_configs.first_groups"
    firsts = plain(setting(config, key, object, None))
    if firsts is None:
        return [0, *accumulate(count for _, count in groups)][:-1]
    if not isinstance(firsts, list | tuple) or not all(type(each) is int and each >= 0 for each in firsts):
        raise refused(key, firsts, "a list of integers of at least 0, or null")
    if len(firsts) != len(groups):
        raise refused(key, firsts, f"one number for each of the {len(groups)} tags, or null")
    return list(firsts)


def environment_tags(config: Any, mode: str) -> tuple[dict[int, str], dict[str, int]]:
    """The tag of each environment id, and the number of environments of each tag.

    Args:
        config: The whole configuration.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: See :func:`tag_groups`.
    """
    size = count(config, f"es_manager.{mode}.group_size", low=1)
    owners = [tag for tag, groups in tag_groups(config, mode) for _ in range(groups * size)]
    return dict(enumerate(owners)), {tag: owners.count(tag) for tag in owners}


def check_tag(tag: str, known: Collection[str]) -> None:
    """Refuse a tag that is not among the keys of ``custom_envs``.

    Raises:
        ConfigError: It is not.
    """
    if tag not in known:
        meant = did_you_mean(tag, map(str, known)) or f" There are {', '.join(sorted(known))}."
        raise ConfigError(f"tag {tag!r} is not a key of custom_envs.{meant}")


def custom_env(config: Any, tag: str) -> dict[str, Any]:
    """The entry of a tag under ``custom_envs``, as plain Python.

    Raises:
        ConfigError: There is none.
    """
    known = setting(config, "custom_envs", Mapping, {})
    check_tag(tag, known)
    return dict(plain(known[tag]) or {})
