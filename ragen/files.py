"""Atomic writing of files: a killed process leaves either the old or the complete new file."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO


def why_no_folder(folder: Path, error: OSError) -> str:
    """Why a folder cannot be written to, and what to do, for a message.

    Args:
        folder: The folder.
        error: The system's error.
    """
    for path in (folder, *folder.parents):
        if path.exists():
            if not path.is_dir():
                return f"{str(path)!r} is a file, not a folder; name another folder, or move that file away"
            break
    return f"it is not writable ({error.strerror or error}); name another folder"


def new_folder(parent: Path | str) -> Path:
    """Create a folder named after the current second, with a number if that name is taken.

    ``parent/2026-05-17/14-03-59``, ``parent/2026-05-17/14-03-59-2``, ..

    Args:
        parent: Its parent; created if needed.

    Raises:
        OSError: It cannot be created.
    """
    now = datetime.now()
    day = Path(parent) / now.strftime("%Y-%m-%d")
    day.mkdir(parents=True, exist_ok=True)
    moment = now.strftime("%H-%M-%S")
    for name in itertools.chain([moment], (f"{moment}-{place}" for place in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            (day / name).mkdir()
            break
    return day / name


def part_of(path: Path) -> Path:
    """Where :func:`replacing` writes; a process that is killed meanwhile leaves it."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[IO[bytes]]:
    """Write a file that replaces ``path`` at the end of the block; if the block raises, nothing is left behind.

    Args:
        path: The file; its folder is created if needed.
        durable: Whether to wait until it is on the disk, so that it survives a crash of the machine.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    try:
        with part.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str, durable: bool = False) -> None:
    """Replace a file with a text in UTF-8; see :func:`replacing`."""
    with replacing(path, durable) as file:
        file.write(text.encode())
