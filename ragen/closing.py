"""Context managers that close themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

T = TypeVar("T")


class Closing(ABC):
    """Is closed when its ``with`` block is over, however that ends."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; may be called twice."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
