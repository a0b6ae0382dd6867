"""Pages on the disk: written as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path

from ragen.errors import ConfigError
from ragen.files import write_whole


def write_page(html: str, path: Path) -> Path:
    """Write a page; the folder is made if it is not there, and an older page is replaced as a whole.

    Returns:
        The path.

    Raises:
        ConfigError: It cannot be written there.
    """
    try:
        write_whole(path, html)
    except OSError as error:
        raise ConfigError(f"the page cannot be written to {path}: {error.strerror}; name another file.") from error
    return path
