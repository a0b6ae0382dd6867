"""Finds, composes and checks Hydra configurations by name.

Composing writes nothing: no ``outputs/`` folder, no ``.hydra/``. The package's own files are always on Hydra's search
path, after the requested folder, so that users' configurations may start with ``defaults: [base]``. verl's
``ppo_trainer`` is found in the same way if verl is installed.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import re
import socket
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from envlanes.interrupts import holds_interrupts
from ragen.errors import ConfigError, did_you_mean, in_contrast, nearest, suggestion
from ragen.output import shown_override
from ragen.settings import config_directory, count, one_line, override_key, plain, refused, setting

if TYPE_CHECKING:
    from omegaconf import DictConfig

_REFERENCE = re.compile(r"\$\{(\w+)[.}]")
_INTERPOLATION = re.compile(r"\$\{[^}]*")
_CALL = re.compile(r"\w+\(")  # such as glob(*, exclude=a*)
log = logging.getLogger(__name__)

FILLED_IN = ("actor", "agent_loop", "mode", "output_dir", "report", "resume", "use_parallel_envs")
"""Keys that RAGEN's configurations lack, and that are added from this package's ``base``."""
OPEN_SECTIONS = ("actor.openai.request", "actor.vllm")
"""Sections with keys of other packages; overrides of these keys need no ``+``."""
_OF_TRAINERS = frozenset(
    [
        *("algorithm", "critic", "custom_reward_function", "distillation", "global_profiler", "model_engine"),
        *("ray_kwargs", "reward", "reward_model", "sandbox_fusion", "skip", "tiny_model", "trainer", "transfer_queue"),
        "warm_up",
    ]
)
_SHARED = {"actor_rollout_ref", "data"} | (_OF_TRAINERS - {"tiny_model", "warm_up"})  # with verl
_CHECKED_BY_MANAGER = ("custom_envs", "es_manager", "seed")
_OF_OLD_VERL = "trainer.val_generations_to_log_to_wandb"  # similar to RAGEN's name

_NEEDED = (
    *(f"agent_proxy.{name}" for name in ("max_turn", "max_actions_per_turn", "action_sep", "enable_think")),
    "custom_envs",
    *(f"es_manager.{{mode}}.{name}" for name in ("env_groups", "group_size", "env_configs")),
)  # the keys of every rollout, all of which ``base`` has
REQUIRED = "???"
_ONLY_SPEED = ("agent_proxy.use_parallel_rollout", "agent_proxy.parallel_")  # how keys begin that change no result
CONNECT_S = 5.0  # seconds for a connection to the hub
NEEDED_SECTIONS = ("actor", "agent_proxy", "custom_envs", "es_manager")
"""Sections that cannot be null."""


@holds_interrupts  # Hydra makes errors of its own of one
def load_config(
    name: str,
    overrides: Sequence[str] = (),
    directory: str | Path | None = None,
    further: str | Path | None = None,
) -> DictConfig:
    """Compose a configuration; Ctrl-C takes effect afterwards.

    Args:
        name: A file in the folder, with or without ``.yaml``; or a path, such as ``./mine.yaml``.
        overrides: Hydra's ``key=value``, ``+key=value`` and ``~key``.
        directory: The folder to search first; None is the package's own.
        further: Another folder, searched after the first one.

    Returns:
        The composed configuration. Interpolations are not resolved yet.

    Raises:
        ConfigError: There is no such folder or file, a file is invalid, a key of it is misspelled, or an override does
            not fit; for unknown keys the message has a suggestion.
    """
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    check_overrides(overrides)
    _check_section_overrides(overrides)
    for key in map(override_key, overrides):
        if key.startswith("hydra.") and not key.startswith("hydra.searchpath"):
            log.warning("ignored: %s (only Hydra's own programs have it; output_dir is where results go)", key)
    stem, folder, folders = find_config(name, directory, further)
    others = [f"file://{each}" for each in folders if each != folder]
    beside = [f"hydra.searchpath={json.dumps(others)}"] if others else []
    _extend_search_path()
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base="1.3", job_name="ragen"):
            warnings.filterwarnings("ignore", "(?s).*_self_.*")  # RAGEN's files leave it out, and mean Hydra's default
            warnings.filterwarnings("ignore", ".*verl.trainer.config is not available.*")  # they name it; see below
            file = OmegaConf.load(folder / f"{stem}.yaml")
            config = _composed(stem, [_opened(override) for override in overrides], beside)
            check_sections(config)
            _check_keys(config, stem, overrides)
            is_whole = _begins_with_base(folder, stem, file)
            return mark_required(config if is_whole else _filled_in(config), file, overrides)
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        if message := _misspelt(name, stem, overrides, directory, further):
            raise ConfigError(message) from error
        override = getattr(error, "override", None)  # only a malformed one is not named by the message
        where = (
            f"configuration {stem!r}"
            if override is None
            else f"configuration {stem!r} with {shown_override(str(override).removeprefix('++'))!r}"
        )
        cure = "" if override is None else ". A value with special characters needs two pairs of quotes: KEY=\"'...'\"."
        raise ConfigError(f"{where} cannot be composed: {one_line(error)}{cure}") from error


def check_sections(config: Any) -> None:
    """Check that every section of this package's ``base`` is a section or null; required sections must not be null.

    Args:
        config: A composed configuration; it is not checked if it has no ``es_manager``.

    Raises:
        ConfigError: A key has another value.
    """
    if "es_manager" not in config:
        return

    def check(ours: Mapping[Any, Any], theirs: Any, above: str) -> None:
        for name, own in ours.items():
            if not isinstance(own, Mapping) or name not in theirs or name == "seed":  # its reader has a better message
                continue
            at, value = f"{above}{name}", theirs[name]
            if isinstance(value, Mapping):
                check(own, value, f"{at}.")
            elif (value is not None and not _is_reference(value)) or at in NEEDED_SECTIONS:
                raise _no_section(at, value)

    check(_own_base_unresolved(), _unresolved(config), "")


def _check_keys(config: Any, stem: str, overrides: Sequence[str]) -> None:
    """Refuse keys that are probably misspelled, unless an override adds them with ``+``."""
    added = [override_key(each) for each in overrides if each.startswith("+")]
    for key, meant in unread_keys(config):
        if meant and not any(f"{each}.".startswith(f"{key}.") or key.startswith(f"{each}.") for each in added):
            raise ConfigError(f"configuration {stem!r} has no key {key!r}.{meant}")


def _misspelt(name: str, stem: str, overrides: Sequence[str], *folders: str | Path | None) -> str:
    """The message about an override of an unknown key, with a suggestion; empty if there is none."""
    try:
        config = load_config(name, (), *folders) if overrides else None
    except ConfigError:
        return ""  # the overrides are not to blame
    known = _own_keys(config or ())
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or key[:1] in "+~" or "@" in key or key in known or _opened(override) != override:
            continue
        if (message := _unknown_key(config, key)) is not None:
            return f"configuration {stem!r} has no key {key!r}.{message} (+{key}={value} would add a new one.)"
    return ""


def _unknown_key(config: Any, key: str) -> str | None:
    """The message about an unknown key; None for a known one."""
    from omegaconf import OmegaConf

    section, known = "", config
    for part in key.split("."):
        if not OmegaConf.is_dict(known):
            return f" {section!r} is not a section."
        if part not in known:
            return _meant(config, key, section, [str(name) for name in known])
        section, known = f"{section}.{part}".strip("."), OmegaConf.select(config, f"{section}.{part}".strip("."))
    return None


def _meant(config: Any, key: str, section: str, known: Sequence[str]) -> str:
    rest = key.removeprefix(f"{section}.") if section else key
    part, dot, below = rest.partition(".")
    if not section and not dot and (named := [each for each in settings_of_base() if each.endswith(f".{part}")]):
        return suggestion(named[:3])
    if meant := did_you_mean(part, known, lambda near: f"{section}.{near}{dot}{below}".strip("."), 0.7):
        return meant
    last_parts = {each: each.rpartition(".")[2] for each in config_keys(config)}
    near = nearest(key.rpartition(".")[2], last_parts.values(), 0.8)
    if meant := suggestion([each for each, last in last_parts.items() if last in near][:3]):
        return meant
    names = ", ".join(known) or "nothing"
    return f" {section!r} has {names}." if section else f" It has {names}."


def _walk(section: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of a mapping and their values, sections included, in its order."""
    for name, value in section.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{name}.")


def config_keys(config: Any) -> list[str]:
    """All dotted keys of a configuration, including sections, in its order. Nothing is resolved."""
    return [key for key, _ in _walk(_unresolved(config))]


def settings_of_base() -> dict[str, Any]:
    """The keys that commands can set: the dotted keys of the package's base configuration, with their defaults."""
    return settings_as_written(_own_base_unresolved())


def settings_as_written(config: Any) -> dict[str, Any]:
    """The dotted keys of a configuration and their values, of which nothing is resolved; sections are left out."""
    return {key: value for key, value in _walk(_unresolved(config)) if not isinstance(value, Mapping)}


def _unresolved(config: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else config


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


@cache
def _own_base() -> Any:
    """The package's own ``base``, without its defaults list."""
    from omegaconf import OmegaConf

    return OmegaConf.load(config_directory() / "base.yaml")


@cache
def _own_base_unresolved() -> Mapping[str, Any]:
    return _unresolved(_own_base())


def known_sections() -> frozenset[str]:
    """The top-level keys that this package reads, without those of trainers."""
    return frozenset(
        {
            *map(str, _own_base()),
            "custom_envs",
            "data",
            "enable_response_mask",
            "grpo_advantage_length_weight",
        }
    )


def unread_sections(config: Any) -> list[str]:
    """The top-level keys of a configuration that neither a rollout nor a trainer reads, sorted.

    Raises:
        ConfigError: A key is probably a misspelled section.
    """
    read = known_sections() | _OF_TRAINERS | referenced_sections(config)
    if config.get("use_parallel_envs"):
        read |= {"env"}
    unread = sorted(str(name) for name in config if name not in read)
    for name in unread:
        if meant := did_you_mean(name, known_sections(), cutoff=0.8):
            raise ConfigError(f"the configuration has a key {name!r}, which nothing reads.{meant}")
    return unread


def unread_keys(config: Any) -> list[tuple[str, str]]:
    """The keys in sections of this package that nothing reads, and those in verl's that are probably misspelled.

    Keys that an environment manager checks, or that other keys refer to, are left out; so are keys directly below
    ``actor`` if the backend is a class of the user's, which may read them.

    verl's keys differ between its versions, and rollouts ignore most of them. So a key in verl's sections is returned
    only if its name is at least 0.9 similar to a key of ``base`` or ``tiny``. Of all keys that verl's files have had,
    only ``_OF_OLD_VERL`` is; the next is ``ppo_micro_batch_size``, with 0.87.

    Args:
        config: A composed configuration; it is not checked if it has no ``es_manager``.

    Returns:
        The dotted keys, each with a suggestion, which is empty if no known key of its section is similar.
    """
    config = _unresolved(config)
    if "es_manager" not in config:
        return []
    known, referenced = _known_keys(), _referenced_names(config)

    def below(ours: Mapping[str, Any], theirs: Mapping[Any, Any], above: str) -> Iterator[tuple[str, str]]:
        is_shared = above.partition(".")[0] in _SHARED
        for name, value in theirs.items():
            key = f"{above}{name}"
            if name in ours:
                if isinstance(value, Mapping) and isinstance(ours[name], Mapping) and key not in OPEN_SECTIONS:
                    yield from below(ours[name], value, f"{key}.")
            elif name not in referenced and key != _OF_OLD_VERL and not (above == "actor." and has_own_backend):
                meant = did_you_mean(str(name), ours, lambda near: f"{above}{near}", 0.9 if is_shared else 0.8)
                if meant or not is_shared:
                    yield key, meant

    actor = config.get("actor")
    has_own_backend = isinstance(actor, Mapping) and ":" in str(actor.get("backend"))
    sections = {name: config[name] for name in known if isinstance(config.get(name), Mapping)}
    return list(below(known, sections, ""))


@cache
def _known_keys() -> Mapping[str, Any]:
    """The sections of ``base`` and ``tiny``, with further keys that this package reads."""
    from omegaconf import OmegaConf

    from ragen.llm_agent.filtering.group_filter import NAMES, PREFIX

    filters = {f"{PREFIX}{name}": None for name in NAMES}
    further = {
        "actor_rollout_ref": {"rollout": filters},
        "agent_loop": {"said": None},
        "agent_proxy": filters,
        "collapse_detection": {"ema_decay": None, "std_eps": None},
    }
    tiny = OmegaConf.load(config_directory() / "tiny.yaml")
    known: Any = OmegaConf.to_container(OmegaConf.merge(further, tiny, _own_base()), resolve=False)
    return {name: keys for name, keys in known.items() if name not in ("defaults", *_CHECKED_BY_MANAGER)}


def _referenced_names(config: Any) -> set[str]:
    """The words in the interpolations of a configuration, such as ``a`` and ``b`` of ``${a.b}``."""
    return set(re.findall(r"\w+", " ".join(_INTERPOLATION.findall(repr(config)))))


def referenced_sections(config: Any) -> set[str]:
    """The first parts of the keys that other keys of a configuration refer to, such as ``lora`` of ``${lora.rank}``."""
    return set(_REFERENCE.findall(repr(_unresolved(config))))


def unread(config: Any, further: Iterable[str] = ()) -> list[str]:
    """Unread sections and keys, and which of some further keys the configuration has, sorted.

    Args:
        config: The whole configuration.
        further: Dotted keys that the caller does not read.

    Raises:
        ConfigError: A key is probably a misspelled section.
    """
    known = set(config_keys(config))
    keys = [key for key, _ in unread_keys(config)]
    return sorted({*unread_sections(config), *keys, *(key for key in further if key in known)})


def tell_ignored(keys: Sequence[str]) -> None:
    """Print to standard error that keys have no effect; nothing if there are none."""
    if keys:
        print(f"ignored: {', '.join(keys)} (they have no effect here)", file=sys.stderr)


def tell_of_other_mode(config: Any, mode: str, words: Iterable[str]) -> None:
    """Print to standard error that only the other mode's environments were chosen; nothing if that is not so.

    Args:
        config: The whole configuration.
        mode: ``"train"`` or ``"val"``, whose section of ``es_manager`` is played.
        words: The arguments of the command.
    """
    other = {"train": "val", "val": "train"}[mode]
    its, own = f"es_manager.{other}.", f"es_manager.{mode}."
    keys, base = settings_as_written(config), settings_of_base()
    set_here = [key for key in map(override_key, words) if key.startswith(its)]
    changed = [key for key, value in keys.items() if key.startswith((its, own)) and value != base.get(key)]
    if set_here or (changed and all(key.startswith(its) for key in changed)):
        what = ", ".join(set_here) or f"es_manager.{other}"
        print(f"ignored: {what} (mode={mode} plays es_manager.{mode}; mode={other} plays the other)", file=sys.stderr)


def _own_keys(config: Any) -> set[str]:
    """The keys that overrides may set even if the configuration lacks them; empty without ``es_manager``."""
    return {*config_keys(_own_base())} if "es_manager" in config else set()


def _begins_with_base(folder: Path, stem: str, file: Any) -> bool:
    """Whether a configuration includes this package's ``base``, judged by its file, since composing is slow."""
    if (folder / "base.yaml").exists() and folder != config_directory():
        return False
    return stem == "base" or "base" in (file.get("defaults") or () if isinstance(file, Mapping) else ())


def _composed(stem: str, overrides: Sequence[str], beside: Sequence[str]) -> Any:
    """The configuration as Hydra composes it; overrides of keys to be filled in need no ``+``."""
    from hydra import compose
    from hydra.errors import HydraException

    try:
        return compose(stem, overrides=[*beside, *overrides])
    except HydraException:  # only now look up the keys, since composing takes a tenth of a second
        config = compose(stem, overrides=list(beside))
        known, tags = _own_keys(config), "|".join(map(re.escape, config.get("custom_envs") or ()))
        of_env = re.compile(rf"custom_envs\.({tags})\.env_config\.\w+=").match  # its class says which fields there are
        fitting = [f"++{each}" if each.partition("=")[0] in known or of_env(each) else each for each in overrides]
        if fitting == list(overrides):
            raise
        return compose(stem, overrides=[*beside, *fitting])


def _filled_in(config: Any) -> Any:
    """The configuration with missing keys filled in."""
    from omegaconf import OmegaConf, open_dict

    if "es_manager" not in config:
        return config
    base = copy.deepcopy(_own_base())
    with open_dict(config):
        for name in FILLED_IN:
            if name not in config:
                config[name] = base[name]
            elif OmegaConf.is_dict(base[name]):
                config[name] = OmegaConf.merge(base[name], config[name])
    return config


def _opened(override: str) -> str:
    """An override as Hydra expects it: ``++`` for open sections, ``seed`` for both modes, quotes where needed."""
    key, _, value = override.partition("=")
    if key == "seed" and value.strip().isdecimal():
        return f"seed={{train: {value}, val: {value}}}"
    override = quoted(override)
    return f"++{override}" if any(f"{key}.".startswith(f"{section}.") for section in OPEN_SECTIONS) else override


def quoted(override: str) -> str:
    """An override with quotes for Hydra if its value is not ASCII, or has ``=``, such as an address with a query."""
    key, _, value = override.partition("=")
    is_plain = value.isascii() and ("=" not in value or _CALL.match(value))
    if is_plain or value[:1] in ("'", '"', "[", "{", "$"):
        return override
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"{key}='{escaped}'"  # backslashes are escapes only before a quote


def plain_sections(config: Any, wanted: Collection[str] | None = None) -> dict[str, Any]:
    """Some top-level sections of a configuration as plain Python, with references to all sections resolved.

    Args:
        config: The whole configuration.
        wanted: Their names; those that the configuration lacks are omitted. None for all of :func:`known_sections`.
    """
    from omegaconf import OmegaConf

    wanted = known_sections() if wanted is None else wanted
    whole: Any = OmegaConf.create(config)
    return {str(name): plain(whole[name]) for name in whole if name in wanted}


def read_max_turn(config: Any) -> int:
    """``agent_proxy.max_turn``: the maximum number of turns of a rollout.

    Raises:
        ConfigError: It is missing or less than 1.
    """
    return count(config, "agent_proxy.max_turn", low=1)


def decisive_settings(config: Any, keys: Iterable[str]) -> dict[str, Any]:
    """The settings that determine the results of a run, as flat keys and values of JSON.

    Settings that only affect speed are excluded.

    Args:
        config: The whole configuration.
        keys: Keys of values or sections; the value is None if the configuration lacks one.

    Raises:
        ConfigError: A key cannot be read.
    """
    flat: dict[str, Any] = {}
    for key in keys:
        flat |= _flat(key, setting(config, key, object, None))
    flat = json.loads(json.dumps(flat, default=str))
    return {key: value for key, value in flat.items() if not f"{key}.".startswith(_ONLY_SPEED)}


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The flat keys whose values differ, sorted, each with its old and new value as short texts."""
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return [(key, *in_contrast(before.get(key), now.get(key), 60)) for key in keys]


def _flat(key: str, value: Any) -> dict[str, Any]:
    value = plain(value)
    if not isinstance(value, Mapping):
        return {key: value}
    return {path: leaf for path, leaf in _walk(value, f"{key}.") if not isinstance(leaf, Mapping)}


@cache
def _extend_search_path() -> None:
    """Append the package's own folder and verl's to Hydra's search path."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class RagenSearchPath(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("ragen", f"file://{config_directory()}")
            if (trainer := _verl_config_directory()) is not None:
                search_path.append("verl", f"file://{trainer}")
            else:  # RAGEN's files include verl's ppo_trainer, of which rollouts read no key
                search_path.append("without_verl", f"file://{config_directory() / 'without_verl'}")

    Plugins.instance().register(RagenSearchPath)


def _verl_config_directory() -> Path | None:
    spec = importlib.util.find_spec("verl")  # does not import verl, which takes seconds
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    return folder if folder.is_dir() else None


# Finding files


def config_names(directory: Path | None = None) -> list[str]:
    """The names that ``--config-name`` takes from a folder (default: the package's own), sorted."""
    return sorted(path.stem for path in (directory or config_directory()).glob("*.yaml"))


def find_config(name: str, directory: str | Path | None, further: str | Path | None) -> tuple[str, Path, list[Path]]:
    """Find the file of a configuration.

    Args:
        name: Its name in one of the folders, with or without ``.yaml``, or the path of a file. A name that begins with
            ``./`` or ``../`` is always a path.
        directory: The folder to search first; None for the package's own.
        further: Another folder, searched after the first one.

    Returns:
        Its name, its folder, and all folders searched.

    Raises:
        ConfigError: There is no such folder or file.
    """
    folders = [_folder(directory), *([] if further is None else [_folder(further)])]
    stem = name.removesuffix(".yaml")
    file = Path(f"{stem}.yaml").expanduser()
    is_path = file.is_absolute() or name.startswith(("./", ".\\", "../", "..\\"))
    for folder in () if is_path else folders:
        if (folder / file).is_file():
            return file.stem, (folder / file).parent, folders  # Hydra would put the content of `a/b` below a key `a`
    if is_path or len(file.parts) > 1:
        if file.is_file():
            folder = file.resolve().parent
            return file.stem, folder, [folder, *folders[directory is None :]]
        meant = did_you_mean(file.stem, config_names(file.parent), lambda near: stem.removesuffix(file.stem) + near)
        raise ConfigError(f"there is no configuration {name!r}: no such file: {file.resolve()}.{meant}")
    where = " and ".join(f"{each}: {', '.join(config_names(each)) or 'none'}" for each in folders)
    if file.is_file():
        meant = f" This folder has a file {file}.{suggestion([f'./{stem}'])}"
    else:
        meant = did_you_mean(stem, (known for each in folders for known in config_names(each)))
    raise ConfigError(f"there is no configuration {stem!r}.{meant or f' Found in {where}.'}")


def check_whole(config: Any, mode: str) -> None:
    """Check that a configuration has the keys that every rollout needs.

    Args:
        config: The whole configuration.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: Several keys or a whole section are missing, as in a file without ``defaults: [base]``. A single
            missing key of a section is reported by its reader.
    """
    lacking = dict.fromkeys(name for key in _NEEDED if (name := _missing(config, key.format(mode=mode))))
    if len(lacking) > 1 or any("." not in name for name in lacking):
        raise ConfigError(
            f"the configuration lacks {', '.join(lacking)}: begin its file with 'defaults: [base]', which has every "
            "key, and add only what differs."
        )


def _missing(config: Any, key: str) -> str | None:
    """The missing part of a dotted key; None if it is present, or if a key above it is not a section."""
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
    except OmegaConfBaseException:  # it is present but cannot be read; its reader says why
        return None
    return None


def check_overrides(overrides: Sequence[str]) -> None:
    """Check the form of overrides.

    Raises:
        ConfigError: One is neither ``key=value`` nor ``~key``.
    """
    for override in overrides:
        key, equals, _ = override.partition("=")
        if key.strip() and (equals or key.startswith("~")):
            continue
        meant = suggestion([f"--config-name {override}"] if override.endswith((".yaml", ".yml")) else [])
        raise ConfigError(f"{override!r} is not of the form key=value, such as seed=5.{meant}")


def _check_section_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides that replace a top-level section with a value, which Hydra would take for a file name."""
    for override in overrides:
        key, _, value = override.partition("=")
        value = value.strip()
        if (
            key == "seed"
            or not isinstance(_own_base_unresolved().get(key), Mapping)
            or value.startswith(("{", "$", "'$", '"$'))
        ):
            continue
        if value != "null" or key in NEEDED_SECTIONS:
            raise _no_section(key, None if value == "null" else value)


def _no_section(key: str, value: Any) -> ConfigError:
    return refused(key, value, "a section of keys, such as {key: value}")


# Models


def check_local(key: str, name: str) -> None:
    """Check that the folder of a model or tokenizer exists; libraries take missing ones for names on the hub.

    Args:
        key: The configuration key of the name.
        name: A folder, or a name on the hub.

    Raises:
        ConfigError: The name is clearly a path, and there is no such folder.
    """
    if (name.startswith((".", "/", "~")) or Path(name).is_absolute()) and not Path(name).is_dir():
        hint = " ~ is not expanded here; write the whole path." if name.startswith("~") else ""
        raise ConfigError(f"configuration key {key!r} is {name!r}: no such folder.{hint}")


def check_model(config: Any, key: str, name: str) -> bool:
    """Check that a model or tokenizer is available: in a folder, in the hub's cache, or on the hub.

    Libraries try an unreachable hub for a minute before they fail.

    Args:
        config: The whole configuration.
        key: The configuration key of the name. If it refers to another key, messages name that one.
        name: A folder, or a name on the hub.

    Returns:
        Whether to use only files of this machine: the name is a folder, or the hub cannot be reached.

    Raises:
        ConfigError: It is not available.
    """
    check_local(key, name)
    key = where_said(config, key)
    if Path(name).is_dir():
        return True
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    is_cached = any((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*"))
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _why_unreachable(constants.ENDPOINT)
    if why and not is_cached:
        raise ConfigError(
            f"configuration key {key!r} is {name!r}, which is neither a folder nor in {cache}, and "
            f"{constants.ENDPOINT} "
            f"cannot be reached: {why}. Name a model's folder, or run `hf download {name}` where there is a network."
        )
    return bool(why)


def where_said(config: Any, key: str) -> str:
    """The key that has the value: the end of a chain of references such as ``${model_path}``."""
    found = _unresolved(config)
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    refers = re.fullmatch(r"\$\{([\w.]+)\}", found) if isinstance(found, str) else None
    return where_said(config, refers[1]) if refers else key


def _why_unreachable(url: str) -> str:
    """Why no connection to a server, or to its proxy, can be opened; empty if one can."""
    parts = urlsplit(url)
    parts = urlsplit(getproxies().get(parts.scheme) or url) if not proxy_bypass(parts.netloc) else parts
    try:
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection(address, timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return one_line(error)
    return ""


def _folder(directory: str | Path | None) -> Path:
    if directory is None:
        return config_directory()
    folder = Path(directory).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"the configuration folder {folder} does not exist.")
    return folder


# Required keys


def mark_required(config: Any, file: Any, overrides: Sequence[str]) -> Any:
    """Restore ``???`` in a composed configuration for the keys that its own file requires and no override sets.

    Args:
        config: The composed configuration; it is changed.
        file: The content of its own file.
        overrides: Hydra's ``key=value``.
    """
    from omegaconf import OmegaConf

    named = {*map(override_key, overrides)}
    for key, value in _walk(_unresolved(file)) if OmegaConf.is_dict(file) else ():
        if value == REQUIRED and key not in named and OmegaConf.select(config, key) is None:
            OmegaConf.update(config, key, REQUIRED)
    return config
