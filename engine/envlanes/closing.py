"""Context managers that close themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

T = TypeVar("T")


class Closing(ABC):
    """A context manager that is closed at the end of its ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Release its resources; may be called twice."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
