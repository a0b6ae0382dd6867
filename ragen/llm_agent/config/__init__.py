"""The configuration of a run: composition of files, typed and checked keys, and command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.config.command_line import add_config_arguments, add_sweep_argument, main_of
    from ragen.llm_agent.config.context import CollapseSettings, ContextSettings
    from ragen.llm_agent.config.groups import tag_groups
    from ragen.llm_agent.config.loading import (
        changed_settings,
        decisive_settings,
        find_config,
        load_config,
        plain_sections,
        tell_ignored,
        unread,
    )
    from ragen.llm_agent.config.report import wants_report

__all__ = [
    "CollapseSettings",
    "ContextSettings",
    "add_config_arguments",
    "add_sweep_argument",
    "changed_settings",
    "decisive_settings",
    "find_config",
    "load_config",
    "main_of",
    "plain_sections",
    "tag_groups",
    "tell_ignored",
    "unread",
    "wants_report",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("add_config_arguments", "add_sweep_argument", "main_of"), "command_line"),
        **dict.fromkeys(("CollapseSettings", "ContextSettings"), "context"),
        **dict.fromkeys(
            (
                "changed_settings",
                "decisive_settings",
                "find_config",
                "load_config",
                "plain_sections",
                "tell_ignored",
                "unread",
            ),
            "loading",
        ),
        "tag_groups": "groups",
        "wants_report": "report",
    },
)
