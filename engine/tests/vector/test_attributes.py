"""Attributes and methods of sub-environments, and how their episodes begin."""

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from support.gym_envs import kill, same, walks

pytestmark = pytest.mark.processes


def test_what_was_set_or_called_outlives_a_killed_worker(lanes):
    envs, other = lanes(walks(3)), SyncVectorEnv(walks(3))
    actions = np.array([4, 4, 4])
    for each in (envs, other):
        each.set_attr("gain", [1.0, 2.0, 3.0])
        each.reset(seed=0)
        each.step(actions)
    assert envs.call("push", 5.0) == other.call("push", 5.0)
    envs.set_attr("gain", 0.5), other.set_attr("gain", 0.5)
    for step in range(25):  # also in later episodes
        if step % 8 == 1:
            kill(envs)
        same(envs.step(actions), other.step(actions))
    assert envs.get_attr("gain") == (0.5,) * 3


def test_methods_are_called_and_attributes_read(lanes):
    envs, other = lanes(walks(2, render_mode="rgb_array")), SyncVectorEnv(walks(2, render_mode="rgb_array"))
    envs.reset(seed=0), other.reset(seed=0)
    same(envs.render(), other.render())
    same(envs.get_attr("render"), other.get_attr("render"))
    same(envs.np_random_seed, other.np_random_seed)
    envs.call_async("push", distance=1.0)
    assert envs.call_wait(timeout=30) == other.call("push", distance=1.0)
    with pytest.raises(ValueError, match="use `step` directly"):
        envs.call("step", 0)
    with pytest.raises(AttributeError):
        envs.call("nothing")
    with pytest.raises(TypeError):
        envs.call("push")
    same(envs.step([0, 0]), other.step([0, 0]))
    with pytest.raises(ValueError, match="Got `3` values"):
        envs.set_attr("gain", [1, 2, 3])


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_resets_and_autoresets_have_options_and_seeds_of_their_own(lanes, mode):
    asked = []

    def seed(index, episode):
        asked.append((index, episode))
        return 10 * index + episode

    envs = lanes(
        walks(2, length=2),
        autoreset_options=lambda index, episode: {"start": 7.0 + episode},
        autoreset_seeds=seed,
        autoreset_mode=mode,
    )
    observations, _ = envs.reset(seed=0, options=[{"start": 1.0}, {"start": 3.0}])
    assert observations[:, 0].tolist() == [1, 3]
    episodes = [1, 1]
    for step in range(30):
        if step == 9:
            kill(envs)
        infos = envs.step([2, 2])[4]
        for index in np.flatnonzero(infos.get("_began", [])):
            episodes[index] += 1
            assert infos["began"][index] == 7 + episodes[index]
            assert envs.np_random_seed[index] == 10 * index + episodes[index]
    assert min(episodes) > 3 and len(set(asked)) == len(asked)  # asked once for each
