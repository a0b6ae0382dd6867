"""Files as values: a base that is never written to, a layer on top of it, and one digest of both.

No file of an episode is on the worker's disk. A layer is what commands have changed; a snapshot of it is the layer
itself, since contents are never changed but replaced: it is taken and gone back to without copying any.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["f", "d", "l"]


class Entry(NamedTuple):
    """A file, a folder or a symbolic link.

    Attributes:
        kind: ``"f"``, ``"d"`` or ``"l"``.
        mode: Its permissions.
        data: A file's contents, a link's target.
    """

    kind: Kind
    mode: int
    data: bytes = b""


Files = Mapping[str, Entry]
"""By path, relative to the root: ``home/notes.txt``, ``tmp``."""

Layer = Mapping[str, Entry | None]
"""What differs from a base; None where a path is gone."""

EMPTY: dict[str, Entry] = {"home": Entry("d", 0o755), "tmp": Entry("d", 0o1777)}


def based_on(files: Mapping[str, Entry]) -> dict[str, Entry]:
    """A base of files of the home folder, by their paths in it; the folders that they need are added."""
    base = dict(EMPTY)
    for path, entry in files.items():
        parts = path.split("/")
        for depth in range(1, len(parts)):
            base.setdefault("home/" + "/".join(parts[:depth]), Entry("d", 0o755))
        base[f"home/{path}"] = entry
    return dict(sorted(base.items()))


def merged(base: Files, layer: Layer) -> dict[str, Entry]:
    """All files, sorted by path: a folder comes before what is in it."""
    files = {path: entry for path, entry in base.items() if path not in layer}
    files.update((path, entry) for path, entry in layer.items() if entry is not None)
    return dict(sorted(files.items()))


def changed(base: Files, layer: Layer, changes: Layer) -> dict[str, Entry | None]:
    """The layer after these changes; what is again as in the base is no part of it."""
    new = {**layer, **changes}
    return {path: entry for path, entry in sorted(new.items()) if base.get(path) != entry}


def digest(files: Files) -> str:
    """A hash of every path, kind, permission and content."""
    found = hashlib.sha256()
    for path, entry in sorted(files.items()):
        name = os.fsencode(path)
        found.update(
            b"%d %s %o %d " % (len(name), entry.kind.encode(), entry.mode, len(entry.data)) + name + entry.data
        )
    return found.hexdigest()


def read_tree(folder: Path) -> dict[str, Entry]:
    """The files of a folder of the user's, by their paths in it; links are kept, and not followed."""
    files: dict[str, Entry] = {}
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(root) / name
            info = path.lstat()
            where, mode = path.relative_to(folder).as_posix(), stat.S_IMODE(info.st_mode)
            if stat.S_ISLNK(info.st_mode):
                files[where] = Entry("l", 0o777, os.fsencode(os.readlink(path)))
            elif stat.S_ISDIR(info.st_mode):
                files[where] = Entry("d", mode)
            elif stat.S_ISREG(info.st_mode):
                files[where] = Entry("f", mode, path.read_bytes())
    return files
