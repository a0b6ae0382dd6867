"""The keys ``report`` and ``output.report``: whether a run writes a report, and serves it while it goes on."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from ragen.errors import ConfigError, install_command
from ragen.settings import setting

KEYS, LIVE = ("report", "output.report"), "live"


def wants_report(config: Any) -> bool:
    """Whether to write a report; also true for ``live``.

    Args:
        config: The whole configuration.

    Raises:
        ConfigError: A key is none of true, false and ``live``.
    """
    return any(_wanted(config))


def wants_live(config: Any) -> bool:
    """Whether to serve the report while the run goes on.

    Args:
        config: The whole configuration.

    Raises:
        ConfigError: A key has an invalid value, or the packages for serving are missing.
    """
    is_wanted = LIVE in _wanted(config)
    if is_wanted:
        check_live()
    return is_wanted


def check_live() -> None:
    """Check that the packages for serving a report are installed.

    Raises:
        ConfigError: A package is missing.
    """
    lacking = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if lacking:
        raise ConfigError(
            f"configuration key 'report' is 'live', which needs {' and '.join(lacking)}: {install_command('live')}, "
            "or use report=true."
        )


def _wanted(config: Any) -> list[bool | str]:
    wanted: list[bool | str] = [setting(config, key, (bool, str), False) for key in KEYS]  # both are checked
    for key, value in zip(KEYS, wanted, strict=True):
        if value not in (True, False, LIVE):
            raise ConfigError(f"configuration key {key!r} is {value!r}; expected true, false or {LIVE!r}.")
    return wanted
