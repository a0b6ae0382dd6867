"""Which problems Countdown and MetaMathQA play where a configuration of generation 2026 leaves that open.

RAGEN has one place for each: ``data/countdown/train.parquet`` below the working directory, and the data set
``meta-math/MetaMathQA`` of the Hugging Face hub. Where they are present, they are played, and else the problems that
come with this package; one line for each type says which. Nothing is downloaded for that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

COUNTDOWN = "data/countdown/train.parquet"
METAMATHQA = "meta-math/MetaMathQA"
_told: set[str] = set()


def named_data(env_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an environment's configuration, with RAGEN's data where it is present and no other is named.

    Args:
        env_type: The type; any but these two is left as it is.
        fields: What ``env_config`` says.
    """
    if env_type not in _FOUND:
        return fields
    key, find = _FOUND[env_type]
    named = fields.get(key)
    found = {} if named is not None else find()
    played = named or found.get(key) or "the problems that come with this package"
    absent = (
        "" if named or found else f"; RAGEN's own are not here ({COUNTDOWN if key == 'train_path' else METAMATHQA})"
    )
    _tell(f"{env_type} plays {played}{absent}.")
    return fields | found


def _tell(line: str) -> None:
    if line not in _told:
        _told.add(line)
        log.warning(line)


def _countdown() -> dict[str, Any]:
    return {"train_path": COUNTDOWN} if Path(COUNTDOWN).is_file() else {}


def _metamathqa() -> dict[str, Any]:
    for folder in (Path(METAMATHQA), Path("data") / METAMATHQA):
        if folder.is_dir():
            return {"dataset_path": str(folder)}
    if (Path("data") / _CACHED).is_dir():
        return {"dataset_path": METAMATHQA, "cache_dir": "./data"}
    return {"dataset_path": METAMATHQA} if any(map(Path.is_dir, _hub_folders())) else {}


_CACHED = "meta-math___meta_math_qa"  # as the datasets library calls it


def _hub_folders() -> list[Path]:
    """Where the hub's libraries keep the data set, as their environment variables say."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    datasets = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return [datasets / _CACHED, hub / f"datasets--{METAMATHQA.replace('/', '--')}"]


_FOUND: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "countdown": ("train_path", _countdown),
    "metamathqa": ("dataset_path", _metamathqa),
}
