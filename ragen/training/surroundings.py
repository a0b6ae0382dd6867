"""What a training run needs around itself: its folder, and quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragen.errors import ConfigError
from ragen.extras import needs
from ragen.files import why_no_folder

with needs("train", "`ragen train`"):
    from transformers.utils import logging as hf_logging


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a progress bar of its own across ours."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


def make_folder(folder: Path) -> None:
    """Make the folder of a run.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"configuration key 'output_dir' is {str(folder)!r}: {why_no_folder(folder, error)}."
        ) from error
