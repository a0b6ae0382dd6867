"""The keys ``report`` and ``output.report``: whether a run writes a report."""

from __future__ import annotations

from typing import Any

from ragen.settings import setting

KEYS = "report", "output.report"


def wants_report(config: Any) -> bool:
    """Whether to write a report.

    Args:
        config: The whole configuration.

    Raises:
        ConfigError: A key is neither true nor false.
    """
    wanted = [setting(config, key, bool, False) for key in KEYS]  # both are checked
    return any(wanted)
