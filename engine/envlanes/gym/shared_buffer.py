"""Memory shared by the main process and its workers, for observations that are too large for a pipe.

A shared buffer has two rows for each environment. A turn writes to the row that does not hold the last observation, so
a turn that fails, is interrupted, or is replayed after its worker was killed while writing, never corrupts an earlier
observation.

The memory belongs to a descriptor of the main process and is freed with the last process that has mapped it. Workers
open it by the main process's id and the descriptor's number.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from envlanes.episode.values import detached

_numbers = itertools.count(1)

IN_BUFFER = "envlanes:in buffer"  # placeholder for an observation stored in its row


class BufferAddress(NamedTuple):
    """The address and layout of a buffer.

    Attributes:
        path: The file to map.
        number: The buffer's number, since descriptors are reused.
        shape: Shape of its rows: ``(2, envs, *shape)``.
        dtype: Their dtype, as text.
    """

    path: str
    number: int
    shape: tuple[int, ...]
    dtype: str


class SharedBuffer:
    """A shared buffer of this process; freed when it is forgotten, and all arrays that are views of its rows.

    Attributes:
        address: Its address for workers.
        rows: An array of shape ``(2, envs, *shape)``.
    """

    def __init__(self, envs: int, shape: tuple[int, ...], dtype: str) -> None:
        """Allocate the memory; pages are used only when they are written.

        Raises:
            OSError: It cannot be allocated.
        """
        descriptor = os.memfd_create("envlanes observations", os.MFD_CLOEXEC)
        # The path is open to other processes for as long as this one holds the descriptor.
        weakref.finalize(self, os.close, descriptor)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.address = BufferAddress(path, next(_numbers), (2, envs, *shape), dtype)
        os.ftruncate(descriptor, 2 * envs * np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)))
        self.rows = _mapped(descriptor, self.address)


class Place(NamedTuple):
    """A place in shared memory for the observation of a turn.

    Attributes:
        address: The buffer's address.
        slot: Index of the row, 0 or 1.
        env: Index of the environment.
    """

    address: BufferAddress
    slot: int
    env: int


def left(observation: Any, place: Place) -> Any:
    """Store an observation at its place if its shape and dtype match; otherwise return a copy of it."""
    address = place.address
    # Not what would be converted: a picture of another dtype than its space's has to come back as it is.
    if type(observation) is np.ndarray and (observation.shape, observation.dtype) == (address.shape[2:], address.dtype):
        try:
            _attached(address)[place.slot, place.env] = observation
            return IN_BUFFER
        except OSError:  # processes may not access each other's descriptors here
            pass
    return detached(observation)


@lru_cache(maxsize=4)  # of the few vector environments that share a worker at a time
def _attached(address: BufferAddress) -> np.ndarray:
    descriptor = os.open(address.path, os.O_RDWR | os.O_CLOEXEC)
    try:  # a mapping needs no descriptor of its own
        return _mapped(descriptor, address)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, address: BufferAddress) -> np.ndarray:
    return np.frombuffer(mmap.mmap(descriptor, 0), address.dtype).reshape(address.shape)
