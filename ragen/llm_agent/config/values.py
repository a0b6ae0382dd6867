"""What stands at a key of a configuration, be it OmegaConf's or plain mappings.

Making OmegaConf's objects of a whole configuration takes milliseconds, with a trainer's sections in it tens of them,
and settings are read by the dozen. So plain mappings are walked through as they are, and OmegaConf is only asked where
it has something to say: of interpolations, of what is mandatory, of values that no configuration can hold.
"""

from __future__ import annotations

from typing import Any

_ABSENT = object()
_ITS_TURN = object()  # OmegaConf's


def value_at(config: Any, key: str, default: Any) -> Any:
    """The value at a dotted key, with interpolations resolved.

    Args:
        config: The whole configuration.
        key: Such as ``agent_proxy.max_turn``.
        default: What to return where the key, or a section above it, is absent.

    Returns:
        The value; a section or a list as OmegaConf's.

    Raises:
        OmegaConfBaseException: It is mandatory and missing, its interpolation fails, or it is nothing that a
            configuration can hold.
    """
    from omegaconf import OmegaConf

    if not OmegaConf.is_config(config):
        found = _walk(config, key)
        if found is _ABSENT:
            return default
        if _is_plain(found):
            return OmegaConf.create(found) if isinstance(found, dict | list) else found
        config = OmegaConf.create(config)
    return OmegaConf.select(config, key, throw_on_missing=True, default=default)


def _walk(config: Any, key: str) -> Any:
    for part in key.split("."):
        if config is None:
            return _ABSENT
        if type(config) is not dict or "[" in part:
            return _ITS_TURN
        if part not in config:
            return _ABSENT
        config = config[part]
    return config


def _is_plain(value: Any) -> bool:
    """Whether OmegaConf would give the value as it is, wherever it stands."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(inner) for key, inner in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is str:
        return "${" not in value and value != "???"
    return value is None or type(value) in (bool, int, float)
