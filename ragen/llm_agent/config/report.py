"""``report`` and ``output.report``: whether a run has a page that people look at, and whether while it goes on."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from ragen.errors import ConfigError, install_command
from ragen.settings import setting

KEYS, LIVE = ("report", "output.report"), "live"


def wants_report(config: Any) -> bool:
    """Whether a configuration asks for a report; one that is served has it too.

    Raises:
        ConfigError: A key is neither true nor false nor ``live``.
    """
    return any(_wanted(config))


def wants_live(config: Any) -> bool:
    """Whether the report is to be served while the run goes on.

    Raises:
        ConfigError: A key has another value than it may have, or there is no server to serve with.
    """
    is_wanted = LIVE in _wanted(config)
    if is_wanted:
        check_live()
    return is_wanted


def check_live() -> None:
    """Find out whether there is a server to serve with.

    Raises:
        ConfigError: There is none.
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
