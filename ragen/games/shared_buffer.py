"""Memory that the main process and its workers share, for observations that are too large for a pipe.

A shared buffer has two rows for each environment. A turn is given the one to write, and it is the one that does not
hold what the environment showed last: a turn that fails, is interrupted, or is played again after its worker was killed
half-way through writing, harms nothing that was shown before.

The memory belongs to a descriptor of the main process and is gone with the last process that has it mapped, however
that ended. Workers find it by the main process's number and the descriptor's.
"""

from __future__ import annotations

import itertools
import mmap
import os
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ragen.games.values import detached

_numbers = itertools.count(1)

IN_BUFFER = "ragen:in buffer"  # stands for an observation that lies in its row


class BufferAddress(NamedTuple):
    """Where a buffer is, and what it holds.

    Attributes:
        path: A file to map.
        number: Of the buffer: descriptors are used again.
        envs: How many have rows.
        shape: Of one observation.
        dtype: Likewise, as text.
    """

    path: str
    number: int
    envs: int
    shape: tuple[int, ...]
    dtype: str


class SharedBuffer:
    """A shared buffer of this process.

    Attributes:
        address: For workers.
        rows: An array of shape ``(2, envs, *shape)``.
    """

    def __init__(self, envs: int, shape: tuple[int, ...], dtype: str) -> None:
        """Make the memory; none is used before it is written.

        Raises:
            OSError: There is none to be had.
        """
        self._descriptor = os.memfd_create("ragen observations", os.MFD_CLOEXEC)
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self.address = BufferAddress(path, next(_numbers), envs, shape, dtype)
        os.ftruncate(self._descriptor, _bytes(self.address))
        self.rows = _mapped(self._descriptor, self.address)

    def close(self) -> None:
        """Give it up; arrays that were handed out stay as they are."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            self.rows = self.rows[:, :0]


class Place(NamedTuple):
    """Where a turn may leave its observation.

    Attributes:
        address: Of the buffer.
        slot: Which of the two rows.
        env: Whose rows.
    """

    address: BufferAddress
    slot: int
    env: int


def left(observation: Any, place: Place) -> Any:
    """Leave an observation at its place, if it is what was expected there; else a copy of it."""
    address = place.address
    if type(observation) is not np.ndarray or observation.shape != address.shape or observation.dtype != address.dtype:
        return detached(observation)
    try:
        attached(address)[place.slot, place.env] = observation
    except OSError:  # where processes may not see each other's descriptors
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
