"""Configuration files are parsed once in a run: half of what composing one costs, and tests compose hundreds."""

from __future__ import annotations

import os
import pickle
from typing import Any

from omegaconf import OmegaConf

_plain = OmegaConf.load
_known: dict[tuple[str, int, int], bytes] = {}


def load(file: Any) -> Any:
    """What ``OmegaConf.load`` gives, read again only where the file has changed."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    try:
        found = os.stat(name)  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError):  # no file of this system's
        return _plain(file)
    key = (os.path.abspath(name), found.st_mtime_ns, found.st_size)  # type: ignore[arg-type, type-var]
    if key not in _known:
        _known[key] = pickle.dumps(_plain(file))
    return pickle.loads(_known[key])


def install() -> None:
    """From now on ``OmegaConf.load`` is this."""
    OmegaConf.load = staticmethod(load)  # type: ignore[method-assign, assignment]
