"""The version of RAGEN that a configuration follows: the top-level keys ``generation`` and ``quirks``.

``generation: 2025`` (the default) is RAGEN of September 2025, ``2026`` is RAGEN of April 2026. The year determines the
defaults of environments (:data:`ENV_DEFAULTS`), what the environment manager records for a turn, and the columns and
metrics of a batch. ``quirks: true`` also reproduces the errors of that version, such as a loss mask that is off by one
column, for comparisons with RAGEN itself; see :mod:`ragen.llm_agent.tokens.compatibility`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragen.errors import ConfigError
from ragen.settings import setting

log = logging.getLogger(__name__)

COUNTDOWN = "data/countdown/train.parquet"
METAMATHQA = "meta-math/MetaMathQA"
_logged: set[str] = set()


def named_data(env_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an environment's configuration; they name RAGEN's data if it is present and no other is named.

    Args:
        env_type: The type; only ``countdown`` and ``metamathqa`` are affected.
        fields: The fields of ``env_config``.
    """
    if env_type not in _FOUND:
        return fields
    key, find = _FOUND[env_type]
    named = fields.get(key)
    found = {} if named is not None else find()
    played = named or found.get(key) or "the problems included in this package"
    absent = (
        ""
        if named or found
        else f"; RAGEN's own are not installed ({COUNTDOWN if key == 'train_path' else METAMATHQA})"
    )
    _log_once(f"{env_type} plays {played}{absent}.")
    return fields | found


def _log_once(line: str) -> None:
    if line not in _logged:
        _logged.add(line)
        log.warning(line)


def _countdown() -> dict[str, Any]:
    return {"train_path": COUNTDOWN} if Path(COUNTDOWN).is_file() else {}


def _metamathqa() -> dict[str, Any]:
    for folder in (Path(METAMATHQA), Path("data") / METAMATHQA):
        if folder.is_dir():
            return {"dataset_path": str(folder)}
    if (Path("data") / _CACHED).is_dir():
        return {"dataset_path": METAMATHQA, "cache_dir": "./data"}
    return {"dataset_path": METAMATHQA} if any(map(Path.is_dir, _hub_folders())) else {}


_CACHED = "meta-math___meta_math_qa"  # the name that the datasets library gives it


def _hub_folders() -> list[Path]:
    """Where the hub's libraries store the data set, according to their environment variables."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    datasets = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return [datasets / _CACHED, hub / f"datasets--{METAMATHQA.replace('/', '--')}"]


_FOUND: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "countdown": ("train_path", _countdown),
    "metamathqa": ("dataset_path", _metamathqa),
}


UNSUPPORTED_KEYS = ("algorithm.bi_level_gae",)
"""RAGEN's keys that change what is learned, and that no trainer of this package supports."""
YEARS = (2025, 2026)

ENV_DEFAULTS: dict[int, dict[str, dict[str, Any]]] = {
    2025: {},
    2026: {
        "frozen_lake": {"p": 0.9, "success_rate": 0.8},
        "bandit": {"split": "train"},
        "webshop": {"compat": "up26"},
    },
}
"""Fields of ``env_config`` whose defaults in a generation differ from those of this package's classes, by type."""

_BANDITS_OF_2025 = {("Phoenix", "Dragon"): "train", ("Trader", "Librarian"): "test"}
"""The arms that RAGEN's tags of 2025 name, and the list from which the tags of the same names draw arms in 2026."""


@dataclass
class Defaults:
    """The defaults for keys that a configuration lacks.

    Attributes:
        year: The generation.
        quirks: Whether batches reproduce RAGEN's errors.
        env_fields: Whether :data:`ENV_DEFAULTS` apply; a checkout's environments have their own defaults.
    """

    year: int = 2025
    quirks: bool = False
    env_fields: bool = True


DEFAULTS = Defaults()


def set_defaults(year: int, quirks: bool, env_fields: bool) -> None:
    """Change the defaults of this process; a RAGEN checkout calls this after ``ragen retrofit``."""
    DEFAULTS.year, DEFAULTS.quirks, DEFAULTS.env_fields = year, quirks, env_fields


@dataclass(frozen=True)
class Generation:
    """The version of RAGEN to follow.

    Attributes:
        year: 2025 or 2026.
        quirks: Whether batches reproduce RAGEN's errors.
    """

    year: int = field(default_factory=lambda: DEFAULTS.year)
    quirks: bool = field(default_factory=lambda: DEFAULTS.quirks)

    @classmethod
    def read(cls, config: Any) -> Generation:
        """Read the two keys.

        Args:
            config: The whole configuration.

        Raises:
            ConfigError: A key has an invalid value.
        """
        year, quirks = _top(config, "generation", DEFAULTS.year), _top(config, "quirks", DEFAULTS.quirks)
        if str(year) not in map(str, YEARS):
            raise ConfigError(f"generation is {year!r}; expected one of {', '.join(map(str, YEARS))}.")
        if not isinstance(quirks, bool):
            raise ConfigError(f"quirks is {quirks!r}; expected true or false.")
        return cls(int(year), quirks)

    @property
    def is_2026(self) -> bool:
        """Whether the year is 2026."""
        return self.year == YEARS[1]

    @property
    def about(self) -> dict[str, Any]:
        """The two keys as they are recorded for a run; those with their default are omitted."""
        default = Generation()
        values = {"generation": (self.year, default.year), "quirks": (self.quirks, default.quirks)}
        return {key: value for key, (value, usual) in values.items() if value != usual}

    def env_fields(self, env_type: str, fields: Mapping[str, Any] | None) -> dict[str, Any]:
        """The fields of an environment's configuration, completed with this generation's defaults.

        Args:
            env_type: The type.
            fields: The fields of ``env_config``.
        """
        given = dict(fields or {})
        if not DEFAULTS.env_fields:
            return given
        defaults = ENV_DEFAULTS[self.year].get(env_type, {})
        if self.is_2026:
            given = named_data(env_type, given)
        if env_type == "bandit" and defaults and "split" not in given:
            arms = given.get("lo_arm_name"), given.get("hi_arm_name")
            if arms in _BANDITS_OF_2025:
                given.pop("lo_arm_name"), given.pop("hi_arm_name")
                return {"split": _BANDITS_OF_2025[arms]} | given
            if any(arms):
                return given
        return defaults | given


def _top(config: Any, key: str, default: Any) -> Any:
    """A top-level key of a configuration, which may be a mapping or an object; the default if it is missing or null."""
    value = config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
    return default if value is None else value


DEFAULT_GENERATION = Generation()
"""RAGEN of September 2025, without quirks."""


def unsupported_keys(config: Any) -> list[str]:
    """The enabled ones of :data:`UNSUPPORTED_KEYS`.

    Args:
        config: The whole configuration.
    """
    return [key for key in UNSUPPORTED_KEYS if setting(config, key, object, False)]
