"""Files that are there either as they were or whole, whenever the process that writes them is killed."""

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
    """Why a folder cannot be written to, and what to do, in the words of a message.

    Args:
        folder: The folder.
        error: What the system said.
    """
    for path in (folder, *folder.parents):
        if path.exists():
            if not path.is_dir():
                return f"{str(path)!r} is a file, not a folder; name another folder, or move that file away"
            break
    return f"it is not writable ({error.strerror or error}); name another folder"


def new_folder(parent: Path | str) -> Path:
    """Make a folder named after this second, or after it and a number where another process has that one.

    ``parent/2026-05-17/14-03-59``, ``parent/2026-05-17/14-03-59-2``, ..

    Args:
        parent: Where; made if it does not exist.

    Raises:
        OSError: It cannot be made.
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


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[IO[bytes]]:
    """Write a file that takes its place when the block is over; nothing is left behind where the block raises.

    Args:
        path: The file; its folder is made if it does not exist.
        durable: Whether to wait until it is on the disk, so that it outlives the machine too.

    Raises:
        OSError: It cannot be written; what was there before still is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
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
    """Write a text in UTF-8 in place of a file; see :func:`replacing`."""
    with replacing(path, durable) as file:
        file.write(text.encode())
