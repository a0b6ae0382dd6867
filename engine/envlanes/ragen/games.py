"""The games of RAGEN's checkouts, whose environments workers import without their packages' ``__init__``.

A worker imports the module of an environment's game before that of its class: this one.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from envlanes.episode import program
from envlanes.episode.values import copied
from envlanes.ragen import bare
from envlanes.ragen.turn import RagenGame, digest_observation, observe, play_turn


class Game2025(RagenGame):
    """RAGEN's game of 2025, in which a turn's ``raw_reward`` is that of its last action, as any other info."""

    play = staticmethod(partial(play_turn, sums_raw_reward=False))  # type: ignore[assignment]


class Game2026(RagenGame):
    """RAGEN's game of 2026, which is the package's own."""


class Stepped(NamedTuple):
    """The result of one ``step``.

    Attributes:
        returned: The value that ``step`` returned.
        observation: The rendered observation after it.
        digest: The observation's digest.
        reward, done: Two of the returned values, which a replay must reproduce.
    """

    returned: Any
    observation: Any
    digest: Any
    reward: Any
    done: Any


class StepGame(RagenGame):
    """A turn is one call of ``step``, whose result goes to a manager that is not ours."""

    def record(self, result: Any) -> tuple[Any, ...]:  # type: ignore[override]
        """The reward, whether the episode is over, and the observation's digest."""
        return result.reward, result.done, result.digest

    def play(self, env: Any, action: Any) -> Stepped:  # type: ignore[override]
        """Call ``step`` with the action, the only item of a tuple."""
        returned = copied(env.step(*action))
        shown = observe(env)
        return Stepped(returned, shown, digest_observation(shown), returned[1], returned[2])


GAME_2025, GAME_2026 = Game2025(), Game2026()
STEPS = StepGame()

if program.in_worker:  # it needs one environment, and neither verl nor all the others
    bare.make("ragen", "ragen.env")
