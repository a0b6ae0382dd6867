"""Keys that a configuration leaves to who runs it: ``model: ???``.

A ``???`` in a file does not survive that the file is merged over a default, such as ``base`` has one for every key. So
they are read from the file itself, and put back where nobody has said anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REQUIRED = "???"
EXAMPLES = {"actor.model": "gpt-4o-mini", "actor.base_url": "http://localhost:8000/v1"}
_NAMED = re.compile(r"Missing mandatory value: ([\w.]+)")


def mark_required(config: Any, file: Any, overrides: Sequence[str]) -> Any:
    """A composed configuration with ``???`` where its own file has it, and no override says otherwise.

    Args:
        config: The composed configuration; it is changed.
        file: What the file itself says.
        overrides: Hydra's ``key=value``.
    """
    from omegaconf import OmegaConf

    named = {override.partition("=")[0].lstrip("+~") for override in overrides}
    for key in _required(OmegaConf.to_container(file, resolve=False)) if OmegaConf.is_dict(file) else ():
        if key not in named and OmegaConf.select(config, key) is None:
            OmegaConf.update(config, key, REQUIRED)
    return config


def _required(section: Any, prefix: str = "") -> Iterator[str]:
    for name, value in section.items():
        if value == REQUIRED:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping):
            yield from _required(value, f"{prefix}{name}.")


def told_missing(key: str, error: Exception) -> str | None:
    """What to say where a key cannot be read since a required one was not given; None where it is something else.

    Args:
        key: The key that was to be read, or one whose value names the required one.
        error: What OmegaConf said of it.
    """
    from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

    if not isinstance(error, MissingMandatoryValue | InterpolationToMissingValueError):
        return None
    found = _NAMED.search(str(error))
    missing = found[1] if found else key
    since = "" if missing == key else f", since {key!r} needs it"
    return (
        f"configuration key {missing!r} must be given{since}: for example {missing}={EXAMPLES.get(missing, 'VALUE')}."
    )
