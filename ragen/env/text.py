"""Environments whose observation is text and nothing else."""

from __future__ import annotations

from ragen.errors import InputError


class TextObservation:
    """Keeps the current observation, and shows it.

    Attributes:
        observation: The text that ``render()`` gives; ``reset`` and ``step`` set it.
    """

    observation: str = ""

    def render(self, mode: str | None = None) -> str:
        """The current observation.

        Args:
            mode: None or ``"text"``.

        Raises:
            InputError: Another mode was asked for.
        """
        if mode not in (None, "text"):
            raise InputError(f"{type(self).__name__} shows text only; render got mode {mode!r}.")
        return self.observation
