"""Files as values: an immutable base, and a layer of changes on top of it.

An episode keeps no files on the worker's disk. Contents in a layer are replaced but never modified, so a snapshot is
the layer itself, and taking or restoring one copies no contents.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["f", "d", "l"]


class Entry(NamedTuple):
    """A file, a folder or a symbolic link.

    Attributes:
        kind: ``"f"`` (file), ``"d"`` (folder) or ``"l"`` (link).
        mode: The permissions.
        data: The contents of a file, or the target of a link.
    """

    kind: Kind
    mode: int
    data: bytes = b""


Files = Mapping[str, Entry]
"""Files by path relative to the root, such as ``home/notes.txt`` and ``tmp``."""

Layer = Mapping[str, Entry | None]
"""Changes to a base, by path; None for a deleted path."""


def based_on(files: Mapping[str, Entry]) -> dict[str, Entry]:
    """A base with these files in the home folder; missing parent folders are added."""
    base = {"home": Entry("d", 0o755), "tmp": Entry("d", 0o1777)}
    for path, entry in files.items():
        parts = path.split("/")
        for depth in range(1, len(parts)):
            base.setdefault("home/" + "/".join(parts[:depth]), Entry("d", 0o755))
        base[f"home/{path}"] = entry
    return dict(sorted(base.items()))


def merged(base: Files, layer: Layer) -> dict[str, Entry]:
    """All files, sorted by path, so that a folder comes before its contents."""
    files = {path: entry for path, entry in base.items() if path not in layer}
    files.update((path, entry) for path, entry in layer.items() if entry is not None)
    return dict(sorted(files.items()))


def changed(base: Files, layer: Layer, changes: Layer) -> dict[str, Entry | None]:
    """The layer after these changes; paths that equal the base again are dropped."""
    new = {**layer, **changes}
    return {path: entry for path, entry in sorted(new.items()) if base.get(path) != entry}


def read_tree(folder: Path) -> dict[str, Entry]:
    """Read the files of a folder, by relative path; links are kept and not followed."""
    files: dict[str, Entry] = {}
    for path in folder.rglob("*"):
        mode, where = path.lstat().st_mode, path.relative_to(folder).as_posix()
        if stat.S_ISLNK(mode):
            files[where] = Entry("l", 0o777, os.fsencode(path.readlink()))
        elif stat.S_ISDIR(mode):
            files[where] = Entry("d", stat.S_IMODE(mode))
        elif stat.S_ISREG(mode):
            files[where] = Entry("f", stat.S_IMODE(mode), path.read_bytes())
    return files
