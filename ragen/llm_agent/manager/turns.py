"""How the turns of a call are asked of the engine: in one piece where that can be."""

from __future__ import annotations

from typing import Any

from ragen.llm_agent.manager.inputs import Asked
from ragen.parallel.engine import EnvEngine
from ragen.parallel.episode.turn import RAW_REWARD
from ragen.parallel.episode.turn_row import TurnRow


class Turns:
    """Plays the turns of one manager."""

    def __init__(self, engine: EnvEngine, is_2026: bool) -> None:
        """Ask this engine, whose environments are all RAGEN's, of that year or before."""
        self._engine = engine
        self._sums = RAW_REWARD if is_2026 else ()
        self._in_rows = not any(spec.uses_global_rng for spec in engine.specs())

    def play(self, asked: Asked) -> dict[int, Any]:
        """Results by env_id, in the order of what was asked; see :meth:`EnvEngine.play`."""
        turns = [turn for turn, _ in asked.values()]
        if turns and self._in_rows and self._engine.rows.can_play():
            return self._engine.rows.play_singly(TurnRow(list(asked), turns, self._sums))
        return self._engine.play(dict(zip(asked, turns, strict=True)))
