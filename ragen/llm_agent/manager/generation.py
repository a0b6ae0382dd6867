"""Which generation of RAGEN a manager is like: 2025 (September 2025) or 2026 (April 2026).

What differs for environments and their rollouts, with ``generation: 2026`` at the top of a configuration:

- a turn's info has ``raw_reward``, the sum of what its actions' infos have under this name (0.0 where they have none),
  and ``manager_invalid_action`` (True) where none of the actions asked for is known; the entry that is appended to the
  history then has the same key;
- metrics have ``max_tile``, ``episodic_return`` and ``final_score`` besides (:mod:`ragen.llm_agent.manager.metrics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.errors import ConfigError
from ragen.parallel.episode.game import Game
from ragen.parallel.episode.turn import RAGEN
from ragen.parallel.episode.turn_2026 import RAGEN_2026

DEFAULT = 2025
GAMES: dict[int, Game] = {2025: RAGEN, 2026: RAGEN_2026}


def generation_of(config: Any) -> int:
    """The generation that a configuration asks for under ``generation``; :data:`DEFAULT` where it does not say.

    Raises:
        ConfigError: It is no generation that there is.
    """
    value = config.get("generation") if isinstance(config, Mapping) else getattr(config, "generation", None)
    if value is None:
        return DEFAULT
    if isinstance(value, bool) or value not in GAMES:
        raise ConfigError(f"generation = {value!r}: expected one of {', '.join(map(str, GAMES))}.")
    return int(value)
