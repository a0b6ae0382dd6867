"""A file of named arrays and texts, which is written once, checked, and memory-mapped.

    data of all sections | manifest (JSON) | footer

The manifest has the position of each section and a checksum of every block of data. The footer, of fixed size, has the
position and checksum of the manifest. Readers map the file into memory, so that all processes on the machine share the
pages, and only the parts in use are read.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ragen.errors import CacheError

_MAGIC = b"RAGENST1"
_FOOTER = struct.Struct("<QII8s")  # manifest's length in bytes, its checksum, unused, magic
_BLOCK = 1 << 20  # bytes under one checksum
_ALIGNMENT = 64  # bytes
_BLOCKS_CHECKED = 1024  # of a larger file, about this many blocks are checked, so that opening stays fast


class StoreWriter:
    """Writes sections in sequence."""

    def __init__(self, stream: BinaryIO) -> None:
        """Write to a binary stream, from its current position."""
        self._stream = stream
        self._sections: dict[str, tuple[str, int, int]] = {}
        self._checksums: list[int] = []
        self._pending = bytearray()
        self._size = 0

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Write a one-dimensional array."""
        self._align()
        self._sections[name] = (array.dtype.str, self._size, len(array))
        self._write(np.ascontiguousarray(array).tobytes())

    def add_texts(self, name: str, texts: Iterable[bytes]) -> None:
        """Write byte strings of any length, which can be read one by one."""
        self._align()
        start, ends = self._size, [0]
        for text in texts:
            self._write(text)
            ends.append(self._size - start)
        self._sections[name] = ("|u1", start, ends[-1])
        self.add_array(_ends(name), np.array(ends, dtype="<i8"))

    def finish(self, meta: dict[str, Any]) -> None:
        """Write the manifest, with additional facts."""
        self._flush(len(self._pending))
        manifest = {"meta": meta, "sections": self._sections, "size": self._size, "checksums": self._checksums}
        data = json.dumps(manifest).encode()
        self._stream.write(data + _FOOTER.pack(len(data), zlib.crc32(data), 0, _MAGIC))

    def _align(self) -> None:
        self._write(bytes(-self._size % _ALIGNMENT))

    def _write(self, data: bytes) -> None:
        self._pending += data
        self._size += len(data)
        if len(self._pending) >= _BLOCK:
            self._flush(len(self._pending) // _BLOCK * _BLOCK)

    def _flush(self, count: int) -> None:
        data = bytes(self._pending[:count])
        del self._pending[:count]
        self._checksums += [zlib.crc32(data[at : at + _BLOCK]) for at in range(0, count, _BLOCK)]
        self._stream.write(data)


class Store:
    """Reads a file that a :class:`StoreWriter` wrote.

    Attributes:
        meta: The facts given to :meth:`StoreWriter.finish`.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        """Read from bytes or mapped memory.

        Raises:
            CacheError: The data is damaged.
        """
        self._data = data
        manifest = _read_manifest(data)
        self.meta: dict[str, Any] = manifest["meta"]
        self._sections: dict[str, tuple[str, int, int]] = manifest["sections"]
        _check_blocks(data, manifest["size"], manifest["checksums"])
        self._ends = {name: self.array(name) for name in self._sections if name.endswith(".ends")}

    @classmethod
    def open(cls, path: Path) -> Store:
        """Map a file into memory.

        Raises:
            CacheError: The file is damaged.
            FileNotFoundError: There is no such file.
        """
        with path.open("rb") as file:
            try:
                return cls(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError as error:  # an empty file cannot be mapped
                raise CacheError(f"{path} is empty.") from error

    def array(self, name: str) -> np.ndarray:
        """The array of a section; read-only and not copied."""
        dtype, start, count = self._sections[name]
        return np.frombuffer(self._data, dtype=dtype, offset=start, count=count)

    def text(self, name: str, index: int) -> bytes:
        """One byte string of a section."""
        ends = self._ends[_ends(name)]
        start = self._sections[name][1]
        return self._data[start + int(ends[index]) : start + int(ends[index + 1])]


def _ends(name: str) -> str:
    return f"{name}.ends"


def _read_manifest(data: bytes | mmap.mmap) -> dict[str, Any]:
    end = len(data) - _FOOTER.size
    if end < 0:
        raise CacheError("the file is too short.")
    length, checksum, _, magic = _FOOTER.unpack(data[end:])
    manifest = data[max(0, end - length) : end]
    if magic != _MAGIC or len(manifest) != length or zlib.crc32(manifest) != checksum:
        raise CacheError("the file's manifest is damaged, or the file was cut off.")
    found = json.loads(manifest)
    if found["size"] + length != end:
        raise CacheError("the file's length is not what its manifest says.")
    return found


def _check_blocks(data: bytes | mmap.mmap, size: int, checksums: list[int]) -> None:
    step = max(1, len(checksums) // _BLOCKS_CHECKED)
    view = memoryview(data)
    for index in range(0, len(checksums), step):
        start = index * _BLOCK
        if zlib.crc32(view[start : min(start + _BLOCK, size)]) != checksums[index]:
            raise CacheError(f"the file is damaged between bytes {start} and {start + _BLOCK}.")
