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
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from envlanes.games.values import detached

_numbers = itertools.count(1)

IN_BUFFER = "envlanes:in buffer"  # placeholder for an observation stored in its row


class BufferAddress(NamedTuple):
    """The address and layout of a buffer.

    Attributes:
        path: The file to map.
        number: The buffer's number, since descriptors are reused.
        envs: Number of environments with rows.
        shape: Shape of an observation.
        dtype: Its dtype, as text.
    """

    path: str
    number: int
    envs: int
    shape: tuple[int, ...]
    dtype: str


class SharedBuffer:
    """A shared buffer of this process.

    Attributes:
        address: Its address for workers.
        rows: An array of shape ``(2, envs, *shape)``.
    """

    def __init__(self, envs: int, shape: tuple[int, ...], dtype: str) -> None:
        """Allocate the memory; pages are used only when they are written.

        Raises:
            OSError: It cannot be allocated.
        """
        self._descriptor = os.memfd_create("envlanes observations", os.MFD_CLOEXEC)
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self.address = BufferAddress(path, next(_numbers), envs, shape, dtype)
        os.ftruncate(self._descriptor, _bytes(self.address))
        self.rows = _mapped(self._descriptor, self.address)

    def close(self) -> None:
        """Release it; arrays returned earlier remain valid."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            self.rows = self.rows[:, :0]


class Place(NamedTuple):
    """Where a turn may store its observation.

    Attributes:
        address: The buffer's address.
        slot: Which of the two rows.
        env: Index of the environment.
    """

    address: BufferAddress
    slot: int
    env: int


def left(observation: Any, place: Place) -> Any:
    """Store an observation at its place if its shape and dtype match; otherwise return a copy of it."""
    address = place.address
    if type(observation) is not np.ndarray or observation.shape != address.shape or observation.dtype != address.dtype:
        return detached(observation)
    try:
        attached(address)[place.slot, place.env] = observation
    except OSError:  # processes may not access each other's descriptors here
        return detached(observation)
    return IN_BUFFER


@lru_cache(maxsize=4)
def attached(address: BufferAddress) -> np.ndarray:
    """The rows of a buffer, which may be another process's."""
    descriptor = os.open(address.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _mapped(descriptor, address)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, address: BufferAddress) -> np.ndarray:
    memory = mmap.mmap(descriptor, _bytes(address))
    return np.frombuffer(memory, address.dtype).reshape(2, address.envs, *address.shape)


def _bytes(address: BufferAddress) -> int:
    size = np.dtype(address.dtype).itemsize * int(np.prod(address.shape, dtype=np.int64))
    return 2 * address.envs * size
