"""``envs[i]["env"]``: an environment wherever it lives; what is changed through it is part of its episode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from envlanes.errors import EnvError
from support.episodes import EnvStateManager, config, errors, inputs
from support.faulty_envs import Walk

pytestmark = pytest.mark.usefixtures("backend")

everywhere = pytest.mark.parametrize(
    ("backend", "mode"),
    [("process", True), ("executor", True), ("process", False), ("process", "auto")],
    indirect=["backend"],
)
Kill = Callable[[EnvStateManager], None]


class Level(Walk):
    """Rewards are the level, which is set from outside."""

    level = 0
    tuned = 0

    def reset(self, seed=None, mode=None):
        self.tuned = 0
        return super().reset(seed, mode)

    def set_level(self, level, times=1):
        self.level = level * times
        return self.level

    def tune(self):
        self.tuned += 1
        raise ValueError("out of tune")

    def board(self):
        return np.full(3, self.level)

    def hang(self):
        while True:
            pass

    def step(self, action):
        observation, _, _, info = super().step(action)
        return observation, float(self.level), False, {**info, "tuned": self.tuned}


def leveled(mode, **settings):
    return config({"L": {"env_type": f"{__name__}:Level"}}, [("L", 3)], use_multiprocessing=mode, **settings)


def step(manager, turn):
    """One action in each; the rewards of the turn."""
    given = [{**each, "actions": ["a"]} for each in inputs(range(3), turn)]
    manager.step(given)
    return [entry["status"].rewards[-1] for entry in manager.envs]


@everywhere
def test_it_reads_calls_and_sets(mode):
    with EnvStateManager(leveled(mode)) as manager:
        rollouts = manager.reset()
        env = manager.envs[1]["env"]
        assert env.render() == rollouts[1]["history"][0]["state"]
        assert env.render(mode="text") == env.render()
        assert isinstance(env.place, int)
        assert env.set_level(2, times=2) == 4
        assert (env.board() == 4).all()
        env.level = 5
        assert env.level == 5
        assert step(manager, 0) == [0.0, 5.0, 0.0]
        assert repr(env) == f"<env 1 (tag 'L', type '{__name__}:Level')>"


@everywhere
def test_what_the_environment_raises_is_told_and_ends_nothing(mode):
    with EnvStateManager(leveled(mode)) as manager:
        manager.reset()
        env = manager.envs[0]["env"]
        assert not hasattr(env, "nonsense")
        with pytest.raises(AttributeError, match=r"env 0 .*nonsense"):
            _ = env.nonsense
        with pytest.raises(EnvError, match=r"env 0 .* raised TypeError") as caught:
            env.step(1)
        assert isinstance(caught.value.__cause__, TypeError)
        with pytest.raises(EnvError, match=r"env 0 .* raised ValueError: out of tune"):
            env.tune()
        assert [errors(cache) for cache in manager.step(inputs(range(3), 0))] == [[None]] * 3


@everywhere
def test_an_attribute_outlives_resets_and_may_be_set_before_the_first(mode, kill_lanes):
    with EnvStateManager(leveled(mode)) as manager:
        env = manager.envs[0]["env"]
        env.level = 2
        assert env.level == 2
        manager.reset()
        assert step(manager, 0)[0] == 2.0
        env.level = 9
        manager.reset()
        if mode is True:
            kill_lanes(manager)
        assert step(manager, 0) == [9.0, 0.0, 0.0]
        manager.use_multiprocessing = mode is not True
        assert step(manager, 1) == [9.0, 0.0, 0.0]
