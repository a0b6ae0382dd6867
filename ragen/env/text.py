"""Environments with text observations only."""

from __future__ import annotations

from typing import Any

from ragen.errors import InputError


class TextObservation:
    """Keeps the current observation and renders it.

    Attributes:
        observation: The text that ``render()`` returns; set by ``reset`` and ``step``.
    """

    observation: str = ""

    def render(self, mode: str | None = None) -> str:
        """The current observation.

        Args:
            mode: None or ``"text"``.

        Raises:
            InputError: The mode is another one.
        """
        if mode not in (None, "text"):
            raise InputError(f"{type(self).__name__} shows text only; render got mode {mode!r}.")
        return self.observation


class PickledByConfig:
    """Pickled as its configuration: an unpickled environment must be reset."""

    config: Any

    def __getstate__(self) -> dict[str, Any]:
        """The configuration."""
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build it again."""
        self.__init__(state["config"])  # type: ignore[misc]


class PickledBySnapshot(PickledByConfig):
    """Pickled as its configuration and a snapshot, without what belongs to its process."""

    save: Any
    load: Any

    def __getstate__(self) -> dict[str, Any]:
        """The configuration and a snapshot."""
        return {**super().__getstate__(), "saved": self.save()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build it again, and restore the snapshot."""
        super().__setstate__(state)
        self.load(state["saved"])
