"""Kinds of game other than RAGEN's: gymnasium's, with support for their observations, generators and shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from envlanes.games.gym_game import AT_END, GYM, READ, Began, GymGame, GymResult, GymTurn, IsMethod, Shown
    from envlanes.games.gym_old import GymOldGame
    from envlanes.games.values import detached, digest_of

__all__ = [
    "AT_END",
    "GYM",
    "READ",
    "Began",
    "GymGame",
    "GymOldGame",
    "GymResult",
    "GymTurn",
    "IsMethod",
    "Shown",
    "detached",
    "digest_of",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(
            ("AT_END", "GYM", "READ", "Began", "GymGame", "GymResult", "GymTurn", "IsMethod", "Shown"), "gym_game"
        ),
        "GymOldGame": "gym_old",
        **dict.fromkeys(("detached", "digest_of"), "values"),
    },
)
