"""Private copies of a shared library: engines keep a game in the library's variables, so each game needs its own."""

from __future__ import annotations

import ctypes
import struct
import tempfile
from functools import cache


def private_library(path: str) -> ctypes.CDLL:
    """Load a copy of a shared library, with variables of its own."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:  # a new name each time; the same would be the same library
        file.write(_image(path))
        file.flush()
        return ctypes.CDLL(file.name)


def unload(library: ctypes.CDLL) -> None:
    """Unload a copy, which must not be used afterwards."""
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    close(library._handle)


@cache
def _image(path: str) -> bytes:
    """A library up to the end of what is loaded; of the planner's 34 MB, all but one are for debuggers."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian; a library of macOS is taken whole
            return head + file.read()
        (table,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
        file.seek(table)
        segments = [struct.unpack_from("<I4xQ16xQ", file.read(size)) for _ in range(count)]
        file.seek(0)
        return file.read(max(offset + length for kind, offset, length in segments if kind == 1))
