"""What rows have seen and done, for prompts that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class SimpleMemory:
    """The steps of each row of a batch, oldest first."""

    def __init__(self) -> None:
        """Hold no rows yet."""
        self._rows: list[list[dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> list[dict[str, Any]]:
        return self._rows[row]

    def reset(self, batch_size: int) -> None:
        """Begin with so many rows without steps."""
        self._rows = [[] for _ in range(batch_size)]

    def store(self, record: Mapping[str, Sequence[Any]]) -> None:
        """Add a step to every row.

        Args:
            record: Such as ``{"text_obs": [...], "action": [...]}``, with a value for each row; a row of which all
                values are None made no step.
        """
        for row, steps in enumerate(self._rows):
            step = {key: values[row] for key, values in record.items()}
            if any(value is not None for value in step.values()):
                steps.append(step)

    def fetch(
        self, history_length: int, obs_key: str = "text_obs", action_key: str = "action"
    ) -> tuple[list[str], list[int]]:
        """The last steps of each row as text.

        Args:
            history_length: Most steps to show.
            obs_key: Under which key observations were stored.
            action_key: Under which key actions were stored.

        Returns:
            For each row a line for each step, ``[Observation k: '...', Action k: '...']``, k counted from 1 since the
            reset; and how many lines these are.
        """
        shown = [history_lines(steps, history_length, obs_key, action_key) for steps in self._rows]
        return ["\n".join(lines) for lines in shown], list(map(len, shown))


def history_lines(
    steps: Sequence[Mapping[str, Any]], length: int, obs_key: str = "text_obs", action_key: str = "action"
) -> list[str]:
    """The lines of the last steps of a row; see :meth:`SimpleMemory.fetch`."""
    first = max(0, len(steps) - max(0, length))
    return [
        f"[Observation {number}: '{step[obs_key]}', Action {number}: '{step[action_key]}']"
        for number, step in enumerate(steps[first:], first + 1)
    ]
