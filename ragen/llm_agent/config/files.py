"""Where a configuration's file lies, which of them is meant, and whether it begins with ``base``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen.errors import ConfigError
from ragen.settings import config_directory

_NEEDED = (
    *(f"agent_proxy.{name}" for name in ("max_turn", "max_actions_per_turn", "action_sep", "enable_think")),
    "custom_envs",
    *(f"es_manager.{{mode}}.{name}" for name in ("env_groups", "group_size", "env_configs")),
)  # what no rollout does without, and what our own ``base`` has


def config_names(directory: Path | None = None) -> list[str]:
    """The names that ``--config-name`` takes from a folder (default: the package's own), sorted."""
    return sorted(path.stem for path in (directory or config_directory()).glob("*.yaml"))


def find_config(name: str, directory: str | Path | None, further: str | Path | None) -> tuple[str, Path, list[Path]]:
    """Find the file of a configuration.

    Args:
        name: Its name in one of the folders, with or without ``.yaml``, or the path of a file. What begins with ``./``
            or ``../`` is a path, and no other file of that name is looked for.
        directory: The folder to look in first; None is the package's own.
        further: Another folder, for what is not in the first one.

    Returns:
        Its name, its folder, and all folders that were named.

    Raises:
        ConfigError: There is no such folder or file.
    """
    folders = [_folder(directory), *([] if further is None else [_folder(further)])]
    stem = name.removesuffix(".yaml")
    file = Path(f"{stem}.yaml").expanduser()
    is_path = file.is_absolute() or name.startswith(("./", ".\\", "../", "..\\"))
    for folder in () if is_path else folders:
        if (folder / file).is_file():
            return file.stem, (folder / file).parent, folders  # Hydra would put what is in `a/b` below a key `a`
    if is_path or len(file.parts) > 1:
        if file.is_file():
            folder = file.resolve().parent
            return file.stem, folder, [folder, *folders[directory is None :]]
        raise ConfigError(f"there is no configuration {name!r}: there is no file {file.resolve()}.")
    where = " and ".join(f"{each}: {', '.join(config_names(each)) or 'none'}" for each in folders)
    here = f" One lies in this folder: --config-name ./{stem} was meant?" if file.is_file() else ""
    raise ConfigError(f"there is no configuration {stem!r}; there are in {where}.{here}")


def check_whole(config: Any, mode: str) -> None:
    """See that a configuration has what every rollout reads.

    Args:
        config: The whole configuration.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: It lacks several keys, as a file does that leaves out its first line. One is left to who reads it.
    """
    lacking = dict.fromkeys(name for key in _NEEDED if (name := _missing(config, key.format(mode=mode))))
    if len(lacking) > 1 or any("." not in name for name in lacking):
        raise ConfigError(
            f"the configuration lacks {', '.join(lacking)}: begin its file with 'defaults: [base]', which has every "
            "key, and write down only what differs."
        )


def _missing(config: Any, key: str) -> str | None:
    """The part of a dotted key that is not there; None where it is, or where what is above it is no section."""
    from omegaconf.errors import OmegaConfBaseException

    section, known = config, []
    try:
        for part in key.split("."):
            if not isinstance(section, Mapping):
                return None
            known.append(part)
            if part not in section:
                return ".".join(known)
            section = section[part]
    except OmegaConfBaseException:  # it is there, and cannot be read: who reads it says why
        return None
    return None


def check_overrides(overrides: Sequence[str]) -> None:
    """See that overrides look like some.

    Raises:
        ConfigError: One is no ``key=value``, nor a ``~key``.
    """
    for override in overrides:
        key, equals, _ = override.partition("=")
        if key.strip() and (equals or key.startswith("~")):
            continue
        meant = f" --config-name {override} was meant?" if override.endswith((".yaml", ".yml")) else ""
        raise ConfigError(f"{override!r} is no key=value, such as seed=5.{meant}")


def check_local(key: str, name: str) -> None:
    """See that the path of a model or tokenizer is there, since libraries take what is not for a name of the hub.

    Args:
        key: The configuration key that has it.
        name: A folder, or a name of the hub.

    Raises:
        ConfigError: It is plainly a path, and there is no such folder.
    """
    if (name.startswith((".", "/", "~")) or Path(name).is_absolute()) and not Path(name).is_dir():
        hint = " A ~ stands for nothing here: write the whole path." if name.startswith("~") else ""
        raise ConfigError(f"configuration key {key!r} is {name!r}: there is no such folder.{hint}")


def _folder(directory: str | Path | None) -> Path:
    if directory is None:
        return config_directory()
    folder = Path(directory).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"the configuration folder {folder} does not exist.")
    return folder
