"""Files put into a folder with a copy kept of what they replace, so that every byte can be brought back.

All that is known of it lies in ``.ragen-retrofit/`` of the checkout: ``kept/`` has the originals, ``manifest.json``
says what was there before and what is there now. The folder is made whole under another name before the first file of
the checkout is touched, and each file is replaced at once. Whenever the process is killed, the next one finds either
nothing done, or a manifest whose state says what was going on, and can undo it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragen.errors import RetrofitError

FOLDER = ".ragen-retrofit"
PLACING, PLACED, UNDOING = "placing", "placed", "undoing"
_FORMAT = 1
_NEW, _OLD = f"{FOLDER}.new", f"{FOLDER}.old"  # being made, and being thrown away
_HALF = ".ragen-retrofit-half"  # ending of a file that is being written


@dataclass(frozen=True)
class Kept:
    """One file.

    Attributes:
        path: Its path in the checkout.
        before: Digest of what was there; None if nothing was.
        after: Digest of what was put there.
    """

    path: str
    before: str | None
    after: str


@dataclass(frozen=True)
class Manifest:
    """What was done to a checkout.

    Attributes:
        state: ``"placing"``, ``"placed"`` or ``"undoing"``.
        files: The files.
        folders: Folders that were made, parents first.
        facts: What else is worth to be known later.
    """

    state: str
    files: tuple[Kept, ...]
    folders: tuple[str, ...]
    facts: dict[str, Any]


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Nobody else retrofits this checkout meanwhile.

    Raises:
        RetrofitError: Somebody does.
    """
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RetrofitError(f"another retrofit of {root} is at work; wait for its end.") from None
    finally:
        os.close(descriptor)


def manifest(root: Path) -> Manifest | None:
    """What was done to a checkout; None if nothing was.

    Raises:
        RetrofitError: The manifest cannot be read.
    """
    path = root / FOLDER / "manifest.json"
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["format"] != _FORMAT:
            raise RetrofitError(f"{path} is of format {stored['format']}; undo with the version that wrote it.")
        files = tuple(Kept(**each) for each in stored["files"])
        return Manifest(stored["state"], files, tuple(stored["folders"]), stored["facts"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RetrofitError(f"{path} cannot be read ({error}); the originals lie in {path.parent / 'kept'}.") from error


def original(root: Path, path: str) -> bytes | None:
    """What was in a file before any retrofit; None if there was no such file."""
    known = manifest(root)
    for each in known.files if known else ():
        if each.path == path:
            return None if each.before is None else (root / FOLDER / "kept" / path).read_bytes()
    place = root / path
    return place.read_bytes() if place.is_file() else None


def place(root: Path, files: Mapping[str, bytes], facts: dict[str, Any]) -> None:
    """Put files into a checkout in which nothing was done yet, and keep what they replace.

    Whatever goes wrong, and a Ctrl-C, brings everything back before it is raised.

    Args:
        root: The checkout.
        files: Contents by path.
        facts: What else the manifest is to say.

    Raises:
        RetrofitError: A file cannot be read or written; nothing was changed.
    """
    clean(root)
    try:
        _prepare(root, files, facts)
    except OSError as error:
        clean(root)
        raise RetrofitError(f"{root} cannot be written to ({error}); nothing was changed.") from error
    try:
        for folder in _known(root).folders:
            (root / folder).mkdir(exist_ok=True)
        for path, content in files.items():
            _write(root / path, content)
        _set_state(root, PLACED)
    except BaseException as error:
        undo(root)
        if isinstance(error, OSError):
            raise RetrofitError(f"{root} cannot be written to ({error}); everything was brought back.") from error
        raise


def undo(root: Path, force: bool = False) -> Manifest:
    """Bring back every byte.

    Args:
        root: The checkout.
        force: Give up what was edited since in files that were put there.

    Returns:
        What had been done.

    Raises:
        RetrofitError: Nothing was done to this checkout; or files were edited since.
    """
    clean(root)
    done = manifest(root)
    if done is None:
        raise RetrofitError(f"{root} was not retrofitted: it has no {FOLDER}/manifest.json. Nothing was changed.")
    edited = [each.path for each in done.files if _digest(root / each.path) not in {each.before, each.after, None}]
    if edited and not force:
        raise RetrofitError(
            f"edited since the retrofit, and would be lost: {', '.join(edited)}. Move them away, or add --force. "
            "Nothing was changed."
        )
    _set_state(root, UNDOING)
    for each in done.files:
        _bring_back(root, each)
    for folder in reversed(done.folders):
        shutil.rmtree(root / folder / "__pycache__", ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's files lie there now
            (root / folder).rmdir()
    os.replace(root / FOLDER, root / _OLD)
    clean(root)
    return done


def clean(root: Path) -> None:
    """Remove what a killed process left of copies not made yet, or not needed any more."""
    for name in (_NEW, _OLD):
        shutil.rmtree(root / name, ignore_errors=True)


def _prepare(root: Path, files: Mapping[str, bytes], facts: dict[str, Any]) -> None:
    """Make the folder with the copies whole, and then put it in its place."""
    new = root / _NEW
    kept: list[Kept] = []
    for path, content in files.items():
        before = _digest(root / path)
        if before is not None:
            (new / "kept" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, new / "kept" / path)
        kept.append(Kept(path, before, hashlib.sha256(content).hexdigest()))
    parents = {parent.as_posix() for path in files for parent in Path(path).parents if parent != Path(".")}
    folders = sorted(folder for folder in parents if not (root / folder).is_dir())
    (new / "kept").mkdir(parents=True, exist_ok=True)
    (new / ".gitignore").write_text("*\n")
    _store(new, Manifest(PLACING, tuple(kept), tuple(folders), facts))
    os.replace(new, root / FOLDER)


def _bring_back(root: Path, each: Kept) -> None:
    place = root / each.path
    half = place.with_name(place.name + _HALF)
    half.unlink(missing_ok=True)
    if each.before is None:
        place.unlink(missing_ok=True)
    elif _digest(place) != each.before:
        shutil.copy2(root / FOLDER / "kept" / each.path, half)
        os.replace(half, place)


def _write(place: Path, content: bytes) -> None:
    half = place.with_name(place.name + _HALF)
    half.write_bytes(content)
    if place.exists():
        shutil.copymode(place, half)
    os.replace(half, place)


def _set_state(root: Path, state: str) -> None:
    known = _known(root)
    _store(root / FOLDER, Manifest(state, known.files, known.folders, known.facts))


def _known(root: Path) -> Manifest:
    known = manifest(root)
    assert known is not None
    return known


def _store(folder: Path, what: Manifest) -> None:
    _write(folder / "manifest.json", json.dumps({"format": _FORMAT, **asdict(what)}, indent=1).encode())
    with open(folder / "manifest.json", "rb") as stored:
        os.fsync(stored.fileno())


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
