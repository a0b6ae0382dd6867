"""The configuration of a run: every key with its type, composition with Hydra, and messages about wrong keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.config.command_line import add_config_arguments, add_sweep_argument, main_of
    from ragen.config.loading import (
        as_config,
        as_model,
        changed_settings,
        compose,
        decisive_settings,
        find_config,
        load_config,
        one_of,
        override_key,
        refused,
    )
    from ragen.config.schema import Amount, Config, Count, Natural, Section, Share, TinyModel, WarmUp

__all__ = [
    "Amount",
    "Config",
    "Count",
    "Natural",
    "Section",
    "Share",
    "TinyModel",
    "WarmUp",
    "add_config_arguments",
    "add_sweep_argument",
    "as_config",
    "as_model",
    "changed_settings",
    "compose",
    "decisive_settings",
    "find_config",
    "load_config",
    "main_of",
    "one_of",
    "override_key",
    "refused",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("add_config_arguments", "add_sweep_argument", "main_of"), "command_line"),
        **dict.fromkeys(
            (
                "as_config",
                "as_model",
                "changed_settings",
                "compose",
                "decisive_settings",
                "find_config",
                "load_config",
                "one_of",
                "override_key",
                "refused",
            ),
            "loading",
        ),
        **dict.fromkeys(("Amount", "Config", "Count", "Natural", "Section", "Share", "TinyModel", "WarmUp"), "schema"),
    },
)
