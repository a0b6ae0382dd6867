"""Composition of configurations with Hydra, and the message for each key that is wrong.

Composing writes nothing: no ``outputs/`` folder, no ``.hydra/``. The package's own files are always on Hydra's search
path, after the requested folder, so that users' configurations may start with ``defaults: [base]``; so are verl's.
"""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from rapidfuzz.distance import OSA

from envlanes.interrupts import holds_interrupts
from ragen.config.schema import Config
from ragen.errors import ConfigError, did_you_mean, in_contrast, in_short, one_line, suggestion
from ragen.files import config_directory
from ragen.output import shown_override

if TYPE_CHECKING:
    from omegaconf import DictConfig

M = TypeVar("M", bound=BaseModel)
REQUIRED = "???"
DATED = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S-%f}"
_CALL = re.compile(r"\w+\(")  # such as glob(*, exclude=a*)
_NAMES: dict[Any, str] = {
    **{bool: "true or false", int: "an integer", float: "a number", str: "a text", Any: "a value", NoneType: "null"},
    **{list: "a list", dict: "a section of keys"},
}
_BOUNDS = {"ge": "of at least {}", "gt": "above {}", "le": "and at most {}", "pattern": "that is not blank"}


# Reading


def load_config(
    name: str,
    overrides: Sequence[str] = (),
    directory: str | Path | None = None,
) -> Config:
    """Compose a configuration and check it; see :func:`compose`."""
    return as_config(compose(name, overrides, directory))


def as_config(config: Any, sections: Collection[str] = ()) -> Config:
    """A configuration as the typed one; that is returned as it is.

    Args:
        config: A :class:`Config`, Hydra's, or nested mappings or objects.
        sections: The sections to read; none for all.

    Raises:
        ConfigError: A key is unknown or missing, or has an invalid value; the message names it.
    """
    if isinstance(config, Config):
        return config
    if not isinstance(config, Mapping) and (isinstance(config, Path) or not hasattr(config, "__dict__")):
        raise ConfigError(
            f"the configuration is {in_short(config)}; expected Hydra's, or nested mappings: load_config reads a file, "
            "and a manager takes the configuration first, then the mode."
        )
    checked = as_model(Config, plain_sections(config, sections))
    checked._source = config
    return checked


def as_model(model: type[M], given: Mapping[str, Any]) -> M:
    """A section from plain Python.

    Raises:
        ConfigError: A key is unknown or missing, or has an invalid value; the message names it.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _explained(model, error) from None


def plain_sections(config: Any, sections: Collection[str] = ()) -> dict[str, Any]:
    """Some top-level sections, or all, as plain Python; references are resolved in those that have a meaning here."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = config.source if isinstance(config, Config) else config
    config = config if isinstance(config, Mapping) else vars(config)
    if not OmegaConf.is_config(config) and "${" in repr(config):
        config = OmegaConf.create(config)
    plain = {}
    for name in config:
        if sections and name not in sections:
            continue
        try:
            value = config._get_node(name) if OmegaConf.is_config(config) else config[name]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=bool(sections) or name in Config.model_fields)
            elif OmegaConf.is_config(config):
                value = REQUIRED if OmegaConf.is_missing(config, name) else config[name]
        except OmegaConfBaseException as error:
            raise ConfigError(
                f"{getattr(error, 'full_key', None) or name} cannot be read: {one_line(error)}."
            ) from error
        plain[str(name)] = value
    return plain


# Messages


def refused(key: str, value: Any, expected: str, meant: str = "") -> ConfigError:
    """The error for a key with an invalid value.

    Args:
        key: The dotted key.
        value: The value.
        expected: A description of valid values.
        meant: A suggestion, to follow the message; see :func:`.did_you_mean`.
    """
    shown = json.dumps(value) if value is None or isinstance(value, bool) else in_short(value)
    return ConfigError(f"{key} = {shown}: expected {expected}.{meant}")


def described(hint: Any, bounds: Sequence[Any] = ()) -> str:
    """A type and its bounds in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return described(args[0], args[1].metadata)
    if origin in (Union, UnionType):
        return " or ".join(described(each) for each in args)
    if origin is Literal:
        names = [each if isinstance(each, str) else json.dumps(each) for each in args]
        return f"one of {', '.join(names)}" if names[1:] else names[0]
    if origin is list:
        return f"a list, each item {described(args[0])}"
    name = _NAMES.get(origin or hint, _NAMES[dict])
    limits = [text.format(getattr(each, at)) for each in bounds for at, text in _BOUNDS.items() if hasattr(each, at)]
    return " ".join([name, *limits])


def _explained(model: type[BaseModel], error: ValidationError) -> ConfigError:
    """The first error of a configuration: key, value, what was expected, and what was meant."""
    errors = error.errors(include_url=False)  # a misspelt key may also be missing
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    path, hint, bounds = list[str](), model, ()
    for part in first["loc"]:
        field = _fields(hint).get(str(part))
        holder = list if isinstance(part, int) else dict
        held = [get_args(each)[-1] for each in (hint, *get_args(hint)) if get_origin(each) is holder]
        if field is not None:
            hint, bounds = field.annotation, field.metadata
        elif held:
            hint, bounds = held[0], ()
        elif first["type"] != "extra_forbidden":
            break  # the name of a branch of a union
        path.append(str(part))
    kind, context = first["type"], first.get("ctx", {})
    if "name" in context:
        path.append(context["name"])
        if kind == "required":
            field = _fields(hint)[path[-1]]
            hint, bounds = field.annotation, field.metadata
    key, value = ".".join(path), first["input"]
    if kind == "extra_forbidden":
        return ConfigError(f"there is no key {key!r}.{_meant(model, hint, path)}")
    if kind in ("missing", "required"):
        return ConfigError(f"{key} is missing: expected {described(hint, bounds)}.")
    if kind == "value_error":
        return ConfigError(".".join([*path, str(context["error"])]))
    literals = [each for each in get_args(hint) if isinstance(each, str)]
    return refused(key, value, described(hint, bounds), did_you_mean(str(value), literals))


def _meant(model: type[BaseModel], section: Any, path: Sequence[str]) -> str:
    """Suggestions for an unknown key of a section: a sibling, or a key of that name elsewhere."""
    *above, name = path
    siblings, prefix = _fields(section), "".join(f"{each}." for each in above)
    elsewhere = [key for key in known_keys(model) if key.rpartition(".")[2] == name and "<" not in key]
    near = [f"{prefix}{each}" for each in siblings if OSA.distance(name, each) == 1]
    if meant := suggestion(elsewhere[:3] or near) or did_you_mean(name, siblings, lambda each: f"{prefix}{each}"):
        return meant
    return f" There are {', '.join(siblings)}." if siblings else ""


def _fields(hint: Any) -> dict[str, Any]:
    """The keys of a section, or of one that may be null; empty for anything else."""
    return next((each.model_fields for each in (hint, *get_args(hint)) if hasattr(each, "model_fields")), {})


def known_keys(model: Any = Config, above: str = "") -> Iterator[str]:
    """The dotted keys of a section's values; ``<tag>`` stands for any name."""
    for name, field in _fields(model).items():
        tag = ".<tag>" if get_origin(field.annotation) is dict and _fields(field.annotation) else ""
        inner = list(known_keys(field.annotation, f"{above}{name}{tag}."))
        yield from inner or [f"{above}{name}"]


def _section_at(path: Sequence[str]) -> Any:
    """The type at a dotted key; None if there is no such key, ``Any`` below a section that takes any."""
    hint: Any = Config
    for part in path:
        if hint is Any:
            break
        if get_origin(hint) is dict:
            hint = get_args(hint)[1]
        elif part in (fields := _fields(hint)):
            hint = fields[part].annotation
        else:
            return None
    return hint


# Composing


@holds_interrupts  # Hydra makes errors of its own of one
def compose(
    name: str,
    overrides: Sequence[str] = (),
    directory: str | Path | None = None,
) -> DictConfig:
    """Compose a configuration; Ctrl-C takes effect afterwards.

    Args:
        name: A file in the folder, with or without ``.yaml``; or a path, such as ``./mine.yaml``.
        overrides: Hydra's ``key=value``, ``+key=value`` and ``~key``.
        directory: The folder to search before the package's own; None is only that.

    Returns:
        The composed configuration. Interpolations are not resolved yet.

    Raises:
        ConfigError: There is no such folder or file, a file is invalid, or an override does not fit.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    check_overrides(overrides)
    stem, folder, root = find_config(name, directory)
    beside = [] if root == folder else [f"hydra.searchpath={json.dumps([f'file://{root}'])}"]
    _extend_search_path()
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base="1.3", job_name="ragen"):
            warnings.filterwarnings("ignore", "(?s).*_self_.*")  # RAGEN's files leave it out, and mean Hydra's default
            warnings.filterwarnings("ignore", ".*verl.trainer.config is not available.*")  # they name it; see below
            config = compose(stem, overrides=[*beside, *map(_opened, overrides)])
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        for key in map(override_key, overrides):
            path = key.split(".")
            if f"Could not override '{key}'" in str(error) and (section := _section_at(path[:-1])) is not None:
                raise ConfigError(f"there is no key {key!r}.{_meant(Config, section, path)}") from error
        _check_sections(OmegaConf.load(folder / f"{stem}.yaml") if isinstance(error, HydraException) else {})
        override = shown_override(str(getattr(error, "override", None) or "").removeprefix("++"))
        cure = (
            f" with {override!r}: values with special characters need two pairs of quotes, KEY=\"'...'\""
            if override
            else ""
        )
        raise ConfigError(f"configuration {stem!r} cannot be composed{cure}: {one_line(error)}.") from error
    if "es_manager" in config and "output_dir" not in config:  # of RAGEN's files
        with open_dict(config):
            config.output_dir = DATED
    return config


def _check_sections(file: Any, model: Any = Config, above: str = "") -> None:
    """Refuse a list in the place of a section, which OmegaConf refuses without naming it."""
    for name, value in file.items() if isinstance(file, Mapping) else ():
        if fields := _fields(model).get(name):
            if isinstance(value, Mapping):
                _check_sections(value, fields.annotation, f"{above}{name}.")
            elif _fields(fields.annotation) and not isinstance(value, str | None):
                raise refused(f"{above}{name}", value, described(fields.annotation))


def check_overrides(overrides: Sequence[str]) -> None:
    """Check the form of overrides.

    Raises:
        ConfigError: One is neither ``key=value`` nor ``~key``.
    """
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not key.strip() or not (equals or key.startswith("~")):
            meant = suggestion([f"--config-name {override}"] if override.endswith((".yaml", ".yml")) else [])
            raise ConfigError(f"{override!r} is not of the form key=value, such as seed=5.{meant}")


def override_key(override: str) -> str:
    """The key that an override sets, adds or deletes: ``a.b`` of ``a.b=1``, ``+a.b=1``, ``++a.b=1`` and ``~a.b``."""
    return override.lstrip("+~").partition("=")[0]


def _opened(override: str) -> str:
    """An override as Hydra expects it: ``++`` for known keys, ``seed`` for both modes, quotes where needed."""
    key, _, value = override.partition("=")
    if key == "seed" and value.strip().isdecimal():
        return f"++seed={{train: {value}, val: {value}}}"
    return quoted(override) if _section_at(key.split(".")) is None else f"++{quoted(override)}"


def quoted(override: str) -> str:
    """An override with quotes for Hydra if its value is not ASCII, or has ``=``, such as an address with a query."""
    key, _, value = override.partition("=")
    is_plain = value.isascii() and ("=" not in value or _CALL.match(value))
    if is_plain or value[:1] in ("'", '"', "[", "{", "$"):
        return override
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"{key}='{escaped}'"  # backslashes are escapes only before a quote


@cache
def _extend_search_path() -> None:
    """Append the package's own folder and verl's to Hydra's search path."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class RagenSearchPath(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            verl = importlib.util.find_spec("verl")  # does not import verl, which takes seconds
            # RAGEN's files include verl's ppo_trainer, of which rollouts read no key
            places = [str(config_directory() / "without_verl")] if verl is None else verl.submodule_search_locations
            search_path.append("ragen", f"file://{config_directory()}")
            for place in places or ():
                search_path.append("verl", f"file://{place}" + ("/trainer/config" if verl else ""))

    Plugins.instance().register(RagenSearchPath)


def config_names(directory: Path | None = None) -> list[str]:
    """The names that ``--config-name`` takes from a folder (default: the package's own), sorted."""
    return sorted(path.stem for path in (directory or config_directory()).glob("*.yaml"))


def find_config(name: str, directory: str | Path | None) -> tuple[str, Path, Path]:
    """Find the file of a configuration.

    Args:
        name: Its name in the folder, with or without ``.yaml``, or the path of a file. A name that begins with ``./``
            or ``../`` is always a path.
        directory: The folder to search; None for the package's own.

    Returns:
        Its name, its folder, and the folder searched.

    Raises:
        ConfigError: There is no such folder or file.
    """
    root = Path(directory or config_directory()).expanduser().resolve()
    if not root.is_dir():
        raise ConfigError(f"the configuration folder {root} does not exist.")
    stem = name.removesuffix(".yaml")
    file = Path(f"{stem}.yaml").expanduser()
    is_path = file.is_absolute() or name.startswith(("./", ".\\", "../", "..\\"))
    if not is_path and (root / file).is_file():
        return file.stem, (root / file).parent, root  # Hydra would put the content of `a/b` below a key `a`
    if file.is_file():
        if not is_path and len(file.parts) == 1:
            raise ConfigError(f"there is no configuration {stem!r}. This folder has a file.{suggestion([f'./{stem}'])}")
        return file.stem, file.resolve().parent, root
    place = file.parent if is_path or len(file.parts) > 1 else root
    names = config_names(place)
    meant = did_you_mean(file.stem, names, lambda near: stem.removesuffix(file.stem) + near)
    listed = meant or f" It has {', '.join(names) or 'none'}."
    raise ConfigError(f"there is no configuration {name!r} in {place.resolve()}.{listed}")


# Comparing


def decisive_settings(config: Config, keys: Sequence[str]) -> dict[str, Any]:
    """The settings that determine the results of a run, as flat keys and values of JSON.

    Args:
        config: The configuration.
        keys: Keys of values or sections. Settings of parallel rollouts only affect speed, and are excluded.
    """
    flat = dict[str, Any]()
    for key in keys:
        flat |= _flat(key, config.select(key))
    flat = json.loads(json.dumps(flat, default=str))
    return {key: value for key, value in flat.items() if not re.match(r"agent_proxy\.(use_)?parallel_", key)}


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The flat keys whose values differ, sorted, each with its old and new value as short texts."""
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return [(key, *in_contrast(before.get(key), now.get(key), 60)) for key in keys]


def _flat(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        value = dict(value)
    if not isinstance(value, Mapping):
        return {key: value}
    return {path: leaf for name, inner in value.items() for path, leaf in _flat(f"{key}.{name}", inner).items()}
