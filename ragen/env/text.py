"""Environments with text observations only."""

from __future__ import annotations

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
