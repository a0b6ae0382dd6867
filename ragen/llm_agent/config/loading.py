"""Hydra configurations by name: where they lie, how they are composed, and what is wrong with them.

Nothing is written while composing: no ``outputs/`` folder, no ``.hydra/``. The package's own files are always on
Hydra's search path, behind the folder that is asked for, so a configuration of one's own may start with
``defaults: [base]``; verl's ``ppo_trainer`` is found the same way, where verl is installed.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError, in_short
from ragen.llm_agent.config.files import check_overrides, find_config
from ragen.llm_agent.config.required import mark_required, told_missing
from ragen.llm_agent.config.values import value_at
from ragen.output import shown_override
from ragen.settings import config_directory

if TYPE_CHECKING:
    from omegaconf import DictConfig

_MISSING = object()
FILLED_IN = ("actor", "agent_loop", "mode", "output_dir", "report", "resume", "use_parallel_envs")
"""What a configuration of RAGEN's lacks, and gets from our own ``base``: an actor, and what a command does."""
NEED_NO_PLUS = ("generation", "quirks")
"""What else a configuration of RAGEN's lacks, and may be said on the command line without a ``+``."""
OPEN_SECTIONS = ("actor.openai.request", "actor.vllm")
"""Sections whose keys are somebody else's, and may be overridden without a ``+``."""
_OF_TRAINERS = frozenset(
    [
        *("algorithm", "critic", "custom_reward_function", "distillation", "global_profiler", "model_engine"),
        *("ray_kwargs", "reward", "reward_model", "sandbox_fusion", "skip", "tiny_model", "trainer", "transfer_queue"),
        "warm_up",
    ]
)


def load_config(
    name: str,
    overrides: Sequence[str] = (),
    directory: str | Path | None = None,
    further: str | Path | None = None,
) -> DictConfig:
    """Compose a configuration.

    Args:
        name: A file of the folder, with or without ``.yaml``; or the path of one, such as ``./mine.yaml``.
        overrides: Hydra's ``key=value``, ``+key=value`` and ``~key``.
        directory: The folder to look in first; None is the package's own.
        further: Another folder, for what is not in the first one.

    Returns:
        The composed configuration. Interpolations are not resolved yet.

    Raises:
        ConfigError: There is no such folder or file, a file is not valid, or an override does not fit: of a key that
            is not there, what was probably meant is told.
    """
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    check_overrides(overrides)
    stem, folder, folders = find_config(name, directory, further)
    others = [f"file://{each}" for each in folders if each != folder]
    beside = [f"hydra.searchpath={json.dumps(others)}"] if others else []
    _extend_search_path()
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base="1.3", job_name="ragen"):
            warnings.filterwarnings("ignore", "(?s).*_self_.*")  # RAGEN's files leave it out, and mean Hydra's default
            file = OmegaConf.load(folder / f"{stem}.yaml")
            config = _composed(stem, [_opened(override) for override in overrides], beside)
            is_whole = _begins_with_base(folder, stem, file)
            return mark_required(config if is_whole else _filled_in(config), file, overrides)
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        if told := _misspelt(name, stem, overrides, directory, further):
            raise ConfigError(told) from error
        override = getattr(error, "override", None)  # only a malformed one is not named by the message
        where = (
            f"configuration {stem!r}"
            if override is None
            else f"configuration {stem!r} with {shown_override(override)!r}"
        )
        raise ConfigError(f"{where} cannot be composed: {one_line(error)}") from error


def _misspelt(name: str, stem: str, overrides: Sequence[str], *folders: str | Path | None) -> str:
    """Which override names a key that the configuration does not have, and what was probably meant; "" if none does."""
    try:
        config = load_config(name, (), *folders) if overrides else None
    except ConfigError:
        return ""  # the overrides are not what is wrong
    known = _own_keys(config or ())
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or key[:1] in "+~" or "@" in key or key in known or _opened(override) != override:
            continue
        if (told := _unknown_key(config, key)) is not None:
            return f"configuration {stem!r} has no key {key!r}: {told} (+{key}={value} would add a new one.)"
    return ""


def _unknown_key(config: Any, key: str) -> str | None:
    """What to say of a key that is not there; None of one that is."""
    from omegaconf import OmegaConf

    section, known = "", config
    for part in key.split("."):
        if not OmegaConf.is_dict(known):
            return f"{section!r} is no section."
        if part not in known:
            return _meant(config, key, section, [str(name) for name in known])
        section, known = f"{section}.{part}".strip("."), OmegaConf.select(config, f"{section}.{part}".strip("."))
    return None


def _meant(config: Any, key: str, section: str, known: Sequence[str]) -> str:
    rest = key.removeprefix(f"{section}.") if section else key
    part, dot, below = rest.partition(".")
    if near := get_close_matches(part, known, 1, 0.7):
        meant = f"{section}.{near[0]}{dot}{below}".strip(".")
        return f"{meant!r} was meant?"
    last = key.rpartition(".")[2]
    if elsewhere := [each for each in config_keys(config) if each.rpartition(".")[2] == last]:
        return f"{' or '.join(map(repr, elsewhere[:3]))} was meant?"
    names = ", ".join(known) or "nothing"
    return f"{section!r} has {names}." if section else f"it has {names}."


def config_keys(config: Any) -> list[str]:
    """All dotted keys of a configuration, sections too, in its order. Nothing is resolved."""
    from omegaconf import OmegaConf

    def below(section: Mapping[Any, Any], prefix: str) -> Iterator[str]:
        for name, value in section.items():
            yield f"{prefix}{name}"
            if isinstance(value, Mapping):
                yield from below(value, f"{prefix}{name}.")

    return list(below(OmegaConf.to_container(config, resolve=False), ""))  # type: ignore[arg-type]


@cache
def _own_base() -> Any:
    """The package's own ``base``, without its defaults."""
    from omegaconf import OmegaConf

    return OmegaConf.load(config_directory() / "base.yaml")


def known_sections() -> frozenset[str]:
    """The keys at the top of a configuration that something here reads, beside those of verl's own."""
    return frozenset({*map(str, _own_base()), "custom_envs", "data", "enable_response_mask", "generation"})


def unread_sections(config: Any) -> list[str]:
    """The keys at the top of a configuration that no rollout reads, and no trainer either, sorted."""
    return sorted(str(name) for name in config if name not in known_sections() and name not in _OF_TRAINERS)


def _own_keys(config: Any) -> set[str]:
    """Our ``base``'s keys, which may be said though a configuration has them not; none for one not of rollouts."""
    return {*NEED_NO_PLUS, *config_keys(_own_base())} if "es_manager" in config else set()


def _begins_with_base(folder: Path, stem: str, file: Any) -> bool:
    """Whether a configuration has all that our own ``base`` has, which its file tells: composing takes long."""
    if (folder / "base.yaml").exists() and folder != config_directory():
        return False
    return stem == "base" or "base" in (file.get("defaults") or () if isinstance(file, Mapping) else ())


def _composed(stem: str, overrides: Sequence[str], beside: Sequence[str]) -> Any:
    """Hydra's configuration, with overrides that need no ``+`` for what will be filled in."""
    from hydra import compose
    from hydra.errors import HydraException

    try:
        return compose(stem, overrides=[*beside, *overrides])
    except HydraException:  # only now look for what may be said: composing takes a tenth of a second
        known = _own_keys(compose(stem, overrides=list(beside)))
        fitting = [f"++{each}" if each.partition("=")[0] in known else each for each in overrides]
        if fitting == list(overrides):
            raise
        return compose(stem, overrides=[*beside, *fitting])


def _filled_in(config: Any) -> Any:
    """The configuration with what it lacks; what it says of that itself has to be there in ``base`` too."""
    from omegaconf import OmegaConf, open_dict

    if "es_manager" not in config:
        return config
    base = copy.deepcopy(_own_base())
    OmegaConf.set_struct(base, True)
    for section in OPEN_SECTIONS:
        OmegaConf.set_struct(OmegaConf.select(base, section), False)
    with open_dict(config):
        for name in FILLED_IN:
            if name not in config:
                config[name] = base[name]
            elif OmegaConf.is_dict(base[name]):
                config[name] = OmegaConf.merge(base[name], config[name])
    return config


def _opened(override: str) -> str:
    """An override in Hydra's words: of an open section with ``++``, a seed of both modes, other letters in quotes."""
    key, _, value = override.partition("=")
    if key == "seed" and value.strip().isdecimal():
        return f"seed={{train: {value}, val: {value}}}"
    if not value.isascii() and value[:1] not in ("'", '"', "[", "{", "$"):
        escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
        override = f"{key}='{escaped}'"  # a backslash counts before a quote alone
    return f"++{override}" if any(f"{key}.".startswith(f"{section}.") for section in OPEN_SECTIONS) else override


def one_line(error: BaseException) -> str:
    """An exception's message as one line of text, its class's name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def setting(config: Any, key: str, kind: type | tuple[type, ...], default: Any = _MISSING) -> Any:
    """The value at a dotted key.

    Args:
        config: The whole configuration.
        key: Such as ``agent_proxy.max_turn``.
        kind: The type that the value must have; an int is taken where a float is wanted.
        default: What to return where the key or a section above it is absent or null.

    Raises:
        ConfigError: The key is missing and has no default, or its value is of another type, or not a finite number.
    """
    value = _walk(config, key)
    if value is None or value is _MISSING:
        if default is not _MISSING:
            return default
        raise ConfigError(f"configuration key {key!r} is missing; expected {_kind_name(kind)}.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, float)):
        raise ConfigError(f"configuration key {key!r} is {value!r}; expected {_kind_name(kind)}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"configuration key {key!r} is {value!r}; expected a finite number.")
    return value


def flat_settings(config: Any, keys: Iterable[str]) -> dict[str, Any]:
    """What stands at some keys, each a value or a section, as flat keys and values that JSON knows; to be compared.

    Args:
        config: The whole configuration.
        keys: Such as ``agent_proxy``; null where the configuration has no such key.

    Raises:
        ConfigError: A key cannot be read.
    """
    flat: dict[str, Any] = {}
    for key in keys:
        flat |= _flat(key, setting(config, key, object, None))
    return json.loads(json.dumps(flat, default=str))


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The keys that have other values than before, sorted; each with both values, as short texts."""
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return [(key, in_short(before.get(key), 60), in_short(now.get(key), 60)) for key in keys]


def _flat(key: str, value: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if not isinstance(value, Mapping):
        return {key: value}
    return {path: leaf for name, inner in value.items() for path, leaf in _flat(f"{key}.{name}", inner).items()}


def _walk(config: Any, key: str) -> Any:
    from omegaconf.errors import OmegaConfBaseException

    try:
        return value_at(config, key, _MISSING)
    except OmegaConfBaseException as error:
        told = told_missing(key, error) or f"configuration key {key!r} cannot be read: {one_line(error)}"
        raise ConfigError(told) from error


def _kind_name(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    names |= {"Mapping": "a section of keys, such as {key: value}"}
    names |= dict.fromkeys(("Sequence", "list", "tuple", "ListConfig"), "a list")
    return " or ".join(dict.fromkeys(names.get(one.__name__, one.__name__) for one in kinds))


@cache
def _extend_search_path() -> None:
    """Put the package's own folder, and verl's, behind whatever folder a configuration is asked from."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class RagenSearchPath(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("ragen", f"file://{config_directory()}")
            if (trainer := _verl_config_directory()) is not None:
                search_path.append("verl", f"file://{trainer}")

    Plugins.instance().register(RagenSearchPath)


def _verl_config_directory() -> Path | None:
    spec = importlib.util.find_spec("verl")  # finds the folder without the seconds that importing verl takes
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    return folder if folder.is_dir() else None
