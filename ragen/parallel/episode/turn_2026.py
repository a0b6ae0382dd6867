"""RAGEN's game as its generation of 2026 plays it: a turn's info also tells the sum of its actions' ``raw_reward``."""

from __future__ import annotations

from typing import Any

from ragen.parallel.episode.turn import (
    RagenGame,
    Turn,
    TurnResult,
    _detached,
    copied,
    digest_observation,
    map_actions,
    observe,
)


def play_turn_2026(env: Any, turn: Turn) -> TurnResult:
    """Play one turn as :func:`~ragen.parallel.episode.turn.play_turn` does, and sum ``raw_reward``.

    Args:
        env: The environment, between two turns of an episode that is not over.
        turn: What is asked.

    Returns:
        The result, which shares no mutable object with the environment. Its info has ``raw_reward``, a float: the sum
        of what the executed actions' infos say of it, 0.0 where they say nothing that is a number.

    Raises:
        Exception: Whatever the environment raises.
    """
    actions, actions_left = turn
    known = map_actions(env, actions)
    malformed = not known or len(known) != len(actions)
    executed: list[Any] = []
    reward: float = 0
    raw_reward = 0.0
    done = False
    info: dict[str, Any] = {}
    for action in known[:actions_left]:
        _, gained, done, extra = env.step(action)
        executed.append(action)
        reward += gained
        raw_reward += _number(extra.get("raw_reward", 0.0))
        info.update(extra)
        if done:
            bool(info.get("success", False))  # what has no truth value is the environment's failure, not its reader's
            break
    info["raw_reward"] = raw_reward
    observation = observe(env)
    digest = digest_observation(observation)
    return TurnResult(executed, malformed, copied(reward), bool(done), _detached(info), observation, digest)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


class Ragen2026Game(RagenGame):
    """RAGEN's environments, with infos as RAGEN of 2026 writes them down."""

    play = staticmethod(play_turn_2026)  # type: ignore[assignment]


RAGEN_2026 = Ragen2026Game()
