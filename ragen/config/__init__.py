"""The configuration of a run: every key with its type, composition with Hydra, and messages about wrong keys."""

from ragen.config.command_line import add_config_arguments, add_sweep_argument, main_of
from ragen.config.loading import (
    as_config,
    as_model,
    changed_settings,
    compose,
    decisive_settings,
    find_config,
    load_config,
    override_key,
    refused,
)
from ragen.config.schema import Amount, CollapseDetection, Config, Count, Natural, Section, Share, TinyModel, WarmUp

__all__ = [
    "Amount",
    "CollapseDetection",
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
    "override_key",
    "refused",
]
