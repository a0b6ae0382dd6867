"""Checks that models are available, since libraries try an unreachable hub for a minute before they fail."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ragen.errors import ConfigError, one_line

CONNECT_S = 5.0  # seconds for a connection to the hub


def check_local(key: str, name: str) -> None:
    """Check that the folder of a model or tokenizer exists; libraries take missing ones for names on the hub.

    Args:
        key: The configuration key of the name.
        name: A folder, or a name on the hub.

    Raises:
        ConfigError: The name is clearly a path, and there is no such folder.
    """
    if (name.startswith((".", "/", "~")) or Path(name).is_absolute()) and not Path(name).is_dir():
        hint = " ~ is not expanded here; write the whole path." if name.startswith("~") else ""
        raise ConfigError(f"{key} = {name!r}: no such folder.{hint}")


def check_model(key: str, name: str) -> bool:
    """Check that a model or tokenizer is available: in a folder, in the hub's cache, or on the hub.

    Args:
        key: The configuration key of the name.
        name: A folder, or a name on the hub.

    Returns:
        Whether to use only files of this machine: the name is a folder, or the hub cannot be reached.

    Raises:
        ConfigError: It is not available.
    """
    check_local(key, name)
    if Path(name).is_dir():
        return True
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    is_cached = any((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*"))
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _why_unreachable(constants.ENDPOINT)
    if why and not is_cached:
        raise ConfigError(
            f"{key} = {name!r} is neither a folder nor in {cache}, and "
            f"{constants.ENDPOINT} "
            f"cannot be reached: {why}. Name a model's folder, or run `hf download {name}` where there is a network."
        )
    return bool(why)


def _why_unreachable(url: str) -> str:
    """The reason for a server, or its proxy, being out of reach; empty if it can be reached."""
    parts = urlsplit(url)
    parts = urlsplit(getproxies().get(parts.scheme) or url) if not proxy_bypass(parts.netloc) else parts
    try:
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection(address, timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return one_line(error)
    return ""
