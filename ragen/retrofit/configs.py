"""What a checkout's configurations say of environments, put together without Hydra, verl or anything they start.

A file's ``defaults`` are followed within the folder; what is not there (verl's ``ppo_trainer``) says nothing of
environments, and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen.errors import ConfigError

_SECTIONS = ("es_manager", "custom_envs", "seed")


@dataclass(frozen=True)
class Played:
    """A tag as configurations play it.

    Attributes:
        tag: The tag.
        entry: What ``custom_envs`` says of it.
        configs: Names of the configurations that play it so.
        most: Environments that the largest of them has.
        format_penalty: As that one has it.
    """

    tag: str
    entry: dict[str, Any]
    configs: tuple[str, ...]
    most: int
    format_penalty: float


def played_tags(folder: Path, names: list[str] | None = None) -> list[Played]:
    """Every tag that the configurations of a folder train or validate with, once for each way of playing it.

    Args:
        folder: The folder.
        names: The configurations; None for all that have environments.

    Raises:
        ConfigError: A configuration that was asked for is not there, or cannot be read.
    """
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"{folder} has no configuration {', '.join(unknown)}; it has {', '.join(known) or 'none'}.")
    found: dict[str, Played] = {}
    for name in names or known:
        for tag, entry, most, penalty in _tags(composed(folder, name)):
            key = json.dumps([tag, entry], sort_keys=True, default=str)
            before = found.get(key, Played(tag, entry, (), 0, penalty))
            most = max(most, before.most)
            found[key] = Played(tag, entry, (*before.configs, name), most, before.format_penalty)
    return list(found.values())


def composed(folder: Path, name: str) -> dict[str, Any]:
    """The sections of a configuration that tell of environments, as plain Python; a section that nobody has is empty.

    Raises:
        ConfigError: A file cannot be read, or stands in a circle of defaults.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        whole = _merged(folder, name, ())
        kept = {key: whole[key] for key in _SECTIONS if whole.get(key) is not None}
        return {key: OmegaConf.to_container(kept[key], resolve=True) if key in kept else {} for key in _SECTIONS}
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ConfigError(f"{folder / name}.yaml cannot be read: {' '.join(str(error).split())}") from error


def _merged(folder: Path, name: str, seen: tuple[str, ...]) -> Any:
    """A file on top of those of its defaults that lie in the folder."""
    from omegaconf import OmegaConf

    if name in seen:
        raise ConfigError(f"{folder}: the defaults {' -> '.join((*seen, name))} go in a circle.")
    own: Any = OmegaConf.load(folder / f"{name}.yaml")
    if not OmegaConf.is_dict(own):  # an empty file
        return OmegaConf.create({})
    defaults = list(own.pop("defaults", []))
    parts: list[Any] = []
    for default in defaults if "_self_" in defaults else [*defaults, "_self_"]:
        if default == "_self_":
            parts.append(own)
        elif isinstance(default, str) and (folder / f"{default}.yaml").is_file():
            parts.append(_merged(folder, default, (*seen, name)))
    return OmegaConf.merge(*parts)


def _tags(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], int, float]]:
    for mode in ("train", "val"):
        part = config["es_manager"].get(mode) or {}
        tags = (part.get("env_configs") or {}).get("tags") or ()
        size = int(part.get("env_groups") or 1) * int(part.get("group_size") or 1)
        for tag in tags:
            if tag not in config["custom_envs"]:
                continue
            penalty = config["es_manager"].get("format_penalty")
            yield tag, config["custom_envs"][tag], size, -0.1 if penalty is None else penalty
