"""The modes that workers of RAGEN 2026 get with every batch of prompts, so that weights are switched once in a rollout.

A worker of verl that trains and generates keeps weights for each. RAGEN's goes to those for generation at
``meta_info["mode"]`` ``singleturn`` or ``multiturn-start``, and back at ``singleturn`` or ``multiturn-end``; without a
mode it goes there and back for every turn. Where all episodes end early, a last batch with ``skip_generation`` sends it
back; nothing is generated then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ragen.llm_agent.config.generation import Generation

SINGLE, START, MIDDLE, END = "singleturn", "multiturn-start", "multiturn-middle", "multiturn-end"
SKIP = "skip_generation"


class WorkerModes:
    """Names the batches of one rollout, in which every turn is one batch."""

    def __init__(self, max_turn: int, meta_info: dict[str, Any]) -> None:
        """Begin.

        Args:
            max_turn: The most turns.
            meta_info: Sent to workers; the modes are written into it.
        """
        self._max_turn = max_turn
        self._meta_info = meta_info
        self._mode = END

    @classmethod
    def of(cls, generation: Generation, max_turn: int, meta_info: Mapping[str, Any]) -> Self | None:
        """The modes of a rollout; None in generation 2025, which has no modes.

        Args:
            generation: With its quirks, the caller's own mapping is written into, as RAGEN does it: where that ended
                with ``skip_generation``, the next rollout with the same mapping would be one without generation.
            max_turn: The most turns.
            meta_info: The caller's own ``meta_info`` for workers.
        """
        if not generation.is_2026:
            return None
        if generation.quirks and isinstance(meta_info, dict):
            return cls(max_turn, meta_info)
        return cls(max_turn, {**meta_info})

    def of_turn(self, turn: int) -> dict[str, Any]:
        """The ``meta_info`` of a turn, counted from 0."""
        if self._max_turn == 1:
            self._mode = SINGLE
        elif turn == 0:
            self._mode = START
        else:
            self._mode = END if turn == self._max_turn - 1 else MIDDLE
        self._meta_info["mode"] = self._mode
        return self._meta_info

    def of_end(self) -> dict[str, Any] | None:
        """The ``meta_info`` after the last turn; None where the last turn's mode ended the rollout already."""
        if self._mode in (SINGLE, END):
            return None
        self._mode = END
        self._meta_info.update({"mode": END, SKIP: True})
        return self._meta_info
