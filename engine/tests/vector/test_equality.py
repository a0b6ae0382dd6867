"""The same rollouts as gymnasium's synchronous class, bit for bit, whatever happens to the workers."""

import copy

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from support.gym_envs import Global, Samples, Walk, kill, same, same_runs, walks

pytestmark = pytest.mark.processes
MODES = ["NextStep", "SameStep", "Disabled"]
HOMES = [*(("process", workers, mode) for workers in (2, 0) for mode in MODES), ("executor", 2, "SameStep")]


@pytest.mark.parametrize(("backend", "workers", "mode"), HOMES)
def test_rollouts_equal_those_of_the_synchronous_class_when_workers_are_killed(lanes, backend, workers, mode):
    envs = lanes(walks(5), backend=backend, workers=workers, autoreset_mode=mode, max_restarts=10)
    kills = (15, 22) if workers else ()
    same_runs(envs, SyncVectorEnv(walks(5), autoreset_mode=mode), steps=40, kill_at=kills)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_global_generators_are_kept_apart_where_asked_for(lanes, mode):
    """Each gives what it gives alone, wherever it lives, and after its worker was killed."""
    envs = lanes(walks(4, Global), uses_global_rng=True, autoreset_mode=mode)
    alone = [lanes(walks(1, Global), uses_global_rng=True, workers=0, autoreset_mode=mode) for _ in range(4)]
    shown = [each.reset(seed=5 + index)[0] for index, each in enumerate(alone)]
    same(envs.reset(seed=5)[0], np.concatenate(shown))
    for step in range(30):
        if step in (4, 20):
            kill(envs)
        actions = np.full(4, step % 5)
        same(envs.step(actions)[0], np.concatenate([each.step(actions[:1])[0] for each in alone]))


SPACES = [
    spaces.Discrete(5, start=-2),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(-1, 1, (), np.float64),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary([2, 3]),
    spaces.Text(8),
    spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
    spaces.Dict({"b": spaces.Dict({"c": spaces.Discrete(2)}), "a": spaces.Box(0, 1, (3,), np.float16)}),
    spaces.Sequence(spaces.Discrete(4)),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_every_space_travels_and_replays(lanes, space):
    envs = lanes([lambda: Samples(space)] * 2, shared_memory=False, autoreset_mode="SameStep")
    other = SyncVectorEnv([lambda: Samples(copy.deepcopy(space))] * 2, autoreset_mode="SameStep")
    same_runs(envs, other, steps=8, kill_at=(5,))


class Pictures(Walk):
    """Shows noise, in one and the same large array."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def __init__(self, reuses=True):
        super().__init__()
        self.shown, self.reuses = np.zeros((84, 84, 4), np.uint8), reuses

    def _seen(self):
        self.shown[:] = self.np_random.integers(0, 256, self.shown.shape, np.uint8)
        return self.shown if self.reuses else self.shown.copy()


@pytest.mark.parametrize(("mode", "copy"), [("NextStep", True), ("SameStep", False)])
def test_an_array_that_an_environment_uses_again_is_shown_as_it_was(lanes, mode, copy):
    envs = lanes(walks(3, Pictures), autoreset_mode=mode, copy=copy, max_restarts=10)
    same_runs(envs, SyncVectorEnv(walks(3, Pictures, reuses=False), autoreset_mode=mode), steps=12, kill_at=(2, 9))


class Halves(Walk):
    """Works in the array that it is given."""

    action_space = spaces.Box(-1, 1, (2,))

    def step(self, action):
        action /= 2
        self.place += float(action.sum())
        return self._seen(), self.place, False, False, {}


def test_neither_the_caller_nor_the_environment_changes_an_action_of_a_journal(lanes):
    envs, rewards = lanes([Halves]), []
    envs.reset(seed=1)
    actions = np.empty((1, 2), np.float32)
    for turn in range(4):
        if turn == 2:
            kill(envs)
        actions[:] = given = np.array([[0.5, turn]])
        rewards.append(envs.step(actions)[1][0])
        assert (actions == given).all()
    assert np.diff(rewards).tolist() == pytest.approx([0.75, 1.25, 1.75])
