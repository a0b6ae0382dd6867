"""RAGEN's game as its generation of 2026 plays it: the same turn, and more in its info."""

from __future__ import annotations

import contextlib
from typing import Any

from ragen.parallel.episode.turn import RagenGame, Turn, TurnResult, play_turn

RAW_REWARD = "raw_reward"
NO_VALID_ACTION = "manager_invalid_action"


def play_turn_2026(env: Any, turn: Turn) -> TurnResult:
    """Play one turn with :func:`~ragen.parallel.episode.turn.play_turn`, and add to its info what RAGEN adds.

    Args:
        env: The environment, between two turns of an episode that is not over.
        turn: What is asked.

    Returns:
        The result; its info has ``raw_reward`` (float, summed over the executed actions), and, where no action was
        known, ``manager_invalid_action`` (True).
    """
    tally = _Tally(env)
    result = play_turn(tally, turn)
    info = {**result.info, RAW_REWARD: tally.raw_reward}
    if not result.executed:
        info[NO_VALID_ACTION] = True
    return result._replace(info=info)


class _Tally:
    """An environment whose steps' raw rewards are added up; all else is the environment's own."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.raw_reward = 0.0

    def step(self, action: Any) -> Any:
        stepped = self._env.step(action)
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            self.raw_reward += float(stepped[3].get(RAW_REWARD, 0.0))
        return stepped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class RagenGame2026(RagenGame):
    """RAGEN's game with :func:`play_turn_2026`."""

    play = staticmethod(play_turn_2026)  # type: ignore[assignment]


RAGEN_2026 = RagenGame2026()
