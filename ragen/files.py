"""Files of a run: a killed process leaves the old or the complete new file, and every JSON reader accepts them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import IO, Any

from ragen.errors import steady_repr, steady_text

_DEEPEST, _LONGEST = 20, 300  # levels of a value that are written, and characters of what is below
_HALVES = re.compile("[\ud800-\udfff]")


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON that a strict reader takes, whatever an environment put into it; the same in every run.

    NaN and infinite numbers become null, which JSON does not know, and half a surrogate pair U+FFFD. Numbers and arrays
    of numpy become numbers and lists, sets sorted lists; functions and objects are written without their addresses,
    and what is nested too deep or holds itself as its ``repr``.

    Args:
        value: Any value.
        indent: Spaces of indentation; None for one line.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=_plain)
    except Exception:  # NaN, keys that are no texts, a dict that holds itself, what environments' own objects raise
        text = json.dumps(_simple(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return valid_text(text)


def valid_text(text: str) -> str:
    """A text with each lone surrogate, which JSON may contain, replaced by the replacement character."""
    return _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)


def _plain(value: Any) -> Any:
    """A value that JSON knows, for one that it does not."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=steady_repr)
    return steady_text(value)


def _simple(value: Any, holders: tuple[int, ...] = ()) -> Any:
    """A value that JSON knows in every part, of one that is nested in values with the ids ``holders``."""
    if len(holders) > _DEEPEST or id(value) in holders:
        return steady_repr(value, _LONGEST)
    within = (*holders, id(value))
    if isinstance(value, Mapping):
        return {_key(key): _simple(item, within) for key, item in value.items()}
    return [_simple(item, within) for item in value] if isinstance(value, list | tuple) else _leaf(value)


def _leaf(value: Any) -> Any:
    """Convert a value that is not a container for JSON; fall back to its ``repr``."""
    try:
        return json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)
    except Exception:  # an integer of thousands of digits, an object whose ``tolist`` raises
        return steady_repr(value, _LONGEST)


def _key(key: Any) -> Any:
    if isinstance(key, float) and not isfinite(key):
        return str(float(key))
    known = _leaf(key)
    return known if known is None or isinstance(known, str | int | float) else steady_repr(key)


def why_no_folder(folder: Path, error: OSError) -> str:
    """The reason for a folder not being writable, and what to do, for a message.

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
    """The file that :func:`replacing` writes; a process that is killed meanwhile leaves it."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def replacing(path: Path, durable: bool = False, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a file that replaces ``path`` at the end of the block; if the block raises, nothing is left behind.

    Args:
        path: The file; its folder is created if needed.
        durable: Whether to wait until it is on the disk, so that it survives a crash of the machine.
        mode: Its mode, less the process's umask.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str, durable: bool = False, mode: int = 0o666) -> None:
    """Replace a file with a text in UTF-8; see :func:`replacing`."""
    with replacing(path, durable, mode) as file:
        file.write(text.encode())


def config_directory() -> Path:
    """The folder of the configurations that come with the package.

    In a checkout this is ``config/`` at the top of the repository, else the installed ``ragen/config/files/``.
    """
    package = Path(str(resources.files("ragen")))
    repository = package.resolve().parent
    if (repository / "setup.py").is_file() and (repository / "config" / "base.yaml").is_file():
        return repository / "config"
    return package / "config" / "files"
