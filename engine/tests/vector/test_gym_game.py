"""Gymnasium's environments as games of the engine: forks of them, and what they must not return."""

from __future__ import annotations

import numpy as np
import pytest

from envlanes import Engine, EnvSpec, Settings
from envlanes.errors import InputError, ReturnError
from envlanes.gym.game import AT_END, GYM, GymTurn
from support import gym_envs


class GymGiven:
    """Gives what it is told to."""

    def __init__(self, given):
        self.reset = self.step = lambda *_, **__: given


@pytest.mark.parametrize(
    ("method", "given"),
    [
        *(("reset", given) for given in (None, (0,), np.zeros(2), (0, None))),
        *(("step", given) for given in ((0, 1.0, True, {}), (0, "much", False, False, {}), None)),
    ],
)
def test_what_is_no_reset_or_no_step_is_refused(method, given):
    env = GymGiven(given)
    with pytest.raises(ReturnError, match=rf"^GymGiven\.{method}\(\) returned"):
        GYM.reset(env, 1, None) if method == "reset" else GYM.play(env, GymTurn(0))


def test_a_gymnasium_environment_is_forked_within_its_present_episode():
    with Engine([EnvSpec.of(gym_envs.Walk, None, 0, game=GYM)], Settings.of(use_lanes=True, max_workers=1)) as engine:
        engine.reset({0: 7})
        for action in range(30):
            engine.play({0: GymTurn(action % 5, AT_END)})
        journal = engine.records[0].journal
        assert journal.start.seed is None and journal.turns < 30, "an episode has begun in between"
        with pytest.raises(InputError, match="from 0"):
            engine.fork(0, [1], 30)
        engine.fork(0, [1])
        shown = engine.fork(0, [2], 0)
        assert GYM.digest(shown[2]) == journal.start.digest
        for action in range(12):
            given = engine.play(dict.fromkeys((0, 1), GymTurn(action % 5, AT_END)))
            assert GYM.record(given[0]) == GYM.record(given[1])
