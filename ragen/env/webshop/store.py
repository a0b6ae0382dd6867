"""A folder of named arrays and texts, which is written once and memory-mapped.

Readers map the files into memory, so that all processes on the machine share the pages, and only the parts in use are
read.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


class StoreWriter:
    """Writes arrays and texts to an empty folder."""

    def __init__(self, folder: Path) -> None:
        """Write to this folder."""
        self._folder = folder

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Write an array."""
        np.save(self._folder / f"{name}.npy", array)

    def add_texts(self, name: str, texts: Iterable[bytes]) -> None:
        """Write byte strings of any length, which can be read one by one."""
        ends = [0]
        with (self._folder / name).open("wb") as file:
            for text in texts:
                ends.append(ends[-1] + file.write(text))
        self.add_array(name, np.array(ends, dtype="<i8"))

    def finish(self, meta: dict[str, Any]) -> None:
        """Write additional facts."""
        (self._folder / "meta.json").write_text(json.dumps(meta))


class Store:
    """Reads a folder that a :class:`StoreWriter` wrote.

    Attributes:
        meta: The facts given to :meth:`StoreWriter.finish`.
    """

    def __init__(self, folder: Path) -> None:
        """Read from this folder."""
        self._folder = folder
        self._texts: dict[str, tuple[mmap.mmap, np.ndarray]] = {}
        self.meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())

    def array(self, name: str) -> np.ndarray:
        """An array; read-only and not copied."""
        return np.asarray(np.load(self._folder / f"{name}.npy", mmap_mode="r"))

    def text(self, name: str, index: int) -> bytes:
        """One of the byte strings."""
        if name not in self._texts:
            with (self._folder / name).open("rb") as file:
                self._texts[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), self.array(name)
        data, ends = self._texts[name]
        return data[ends[index] : ends[index + 1]]
