"""Things that gymnasium 1.4's asynchronous class gets wrong."""

import multiprocessing

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from envlanes.errors import EpisodeOverError
from support.gym_envs import Counted, Obeys, same, walks

pytestmark = pytest.mark.processes


def test_a_an_explicit_reset_of_an_ended_environment_resets_it_once(lanes, tmp_path):
    path = tmp_path / "lives"
    envs = lanes(walks(1, Counted, path=str(path)))
    envs.reset(seed=0)
    while not any(envs.step(np.array([2]))[index][0] for index in (2, 3)):
        pass
    path.unlink()
    envs.reset()
    envs.step(np.array([2]))
    assert path.read_text().split() == ["reset"]


def test_b_stepping_an_ended_environment_is_refused_when_nothing_resets_it(lanes):
    envs = lanes(walks(3, length=2), autoreset_mode="Disabled")
    other = SyncVectorEnv(walks(3, length=2), autoreset_mode="Disabled")
    envs.reset(seed=0), other.reset(seed=0)
    actions, over = np.zeros(3, int), np.zeros(3, bool)
    while not over.any() or over.all():
        step = envs.step(actions)
        same(step, other.step(actions))
        over = step[2] | step[3]
    with pytest.raises(EpisodeOverError, match=r"environments \[.*reset_mask"):
        envs.step(actions)
    given = {"reset_mask": over, "start": 2.0}
    same(envs.reset(options=given), other.reset(options=dict(given)))
    assert set(given) == {"reset_mask", "start"}  # the caller's, which stay as they are
    same(envs.step(actions), other.step(actions))  # nobody was stepped by what was refused


def test_c_a_step_that_timed_out_is_still_pending_and_gives_its_own_result(lanes):
    envs, other = lanes(walks(2, Obeys)), SyncVectorEnv(walks(2, Obeys))
    envs.reset(seed=0), other.reset(seed=0)
    envs.step_async(np.array([4, 0]))
    with pytest.raises(multiprocessing.TimeoutError, match="still pending"):
        envs.step_wait(timeout=0.01)
    same(envs.step_wait(), other.step(np.array([4, 0])))
    envs.step_async(np.array([0, 0]))
    same(envs.step_wait(timeout=30), other.step(np.array([0, 0])))


@pytest.mark.parametrize("actions", [np.zeros(2, int), np.zeros(4, int), [0, 0], (0, 0, 0, 0)])
def test_d_a_wrong_number_of_actions_steps_nobody(lanes, actions):
    envs, other = lanes(walks(3)), SyncVectorEnv(walks(3))
    same(envs.reset(seed=0), other.reset(seed=0))
    with pytest.raises(ValueError):
        envs.step(actions)
    same(envs.step(np.zeros(3, int)), other.step(np.zeros(3, int)))


def test_e_no_environment_is_built_only_to_look_at_it(lanes, tmp_path):
    path = tmp_path / "lives"
    envs = lanes(walks(4, Counted, path=str(path)))
    envs.reset(seed=0)
    assert path.read_text().split().count("built") == 4
