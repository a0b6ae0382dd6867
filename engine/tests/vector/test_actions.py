"""Actions that an environment changes as it plays them: neither the caller's array nor a replay may see that."""

import numpy as np
import pytest
from gymnasium.spaces import Box

from envlanes import Engine, EnvSpec, Settings
from envlanes.gym.game import GYM, GymTurn
from ragen.meta.manager import META
from ragen.turns.game import ActionGame
from support.gym_envs import Walk

GAMES = {
    "gym": (GYM, GymTurn),
    "meta": (META, GymTurn),
    "container": (ActionGame(), lambda action: action),
}


class Halves(Walk):
    """Works in the array that it is given."""

    action_space = Box(-1, 1, (2,))

    def step(self, action):
        action /= 2
        self.place += float(action.sum())
        self.steps += 1
        return self._seen(), self.place, False, False, {}


@pytest.mark.parametrize("game", GAMES)
def test_an_environment_may_change_its_action(game):
    played, asked = GAMES[game]
    spec = EnvSpec.of(Halves, game=played)
    given = [np.array([0.5, float(turn)]) for turn in range(4)]
    rewards = []
    with Engine([spec], Settings(use_lanes=False, max_workers=1)) as engine:
        engine.reset({0: 1})
        for turn, action in enumerate(given):
            if turn == 2:
                engine.use_lanes = True  # where it is rebuilt from what was played
            rewards.append(engine.play({0: asked(action)})[0].reward)
    assert [action.tolist() for action in given] == [[0.5, float(turn)] for turn in range(4)]
    steps = np.diff(rewards)
    assert steps.tolist() == pytest.approx([0.75, 1.25, 1.75])
