"""The configuration of a run: every key with its type, composition with Hydra, and messages about wrong keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.config.loading import as_config, load_config
    from ragen.config.schema import Config

__all__ = ["Config", "as_config", "load_config"]

__getattr__, __dir__ = attach(__name__, {"Config": "schema", "as_config": "loading", "load_config": "loading"})
