"""``load_config`` for scripts that work on Hydra's own object; :func:`ragen.config.load_config` also checks it."""

from ragen.config.loading import compose as load_config

__all__ = ["load_config"]
