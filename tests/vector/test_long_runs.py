"""What a vector environment keeps while its environments begin episode after episode, and nobody resets them all."""

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from support.gym_envs import kill, same, walks

pytestmark = pytest.mark.processes


def test_nothing_grows_with_the_number_of_steps(lanes):
    envs = lanes(walks(2, length=3))
    envs.reset(seed=0)
    for _ in range(200):
        envs.step([0, 1])
    engine = envs._envs.engine
    assert all(len(record.journal.entries) < 10 for record in engine.records.values())


def test_a_lane_that_dies_now_and_then_is_replaced_for_ever(lanes):
    envs, other = lanes(walks(2), max_restarts=1), SyncVectorEnv(walks(2))
    same(envs.reset(seed=0), other.reset(seed=0))
    for step in range(150):
        if step % 40 == 9:
            kill(envs)
        same(envs.step(np.array([1, 3])), other.step(np.array([1, 3])))
    assert {home.lane for home in envs.stats() if home.envs} <= {"worker 0", "worker 1"}


def test_homes_are_decided_on_while_episodes_go_on(lanes):
    """Under ``auto`` what pays is found out by trying, and changes no rollout."""
    envs, other = lanes(walks(4), workers="auto"), SyncVectorEnv(walks(4))
    same(envs.reset(seed=0), other.reset(seed=0))
    for step in range(150):
        if step == 70:
            envs._envs.engine.bring_home(range(2))
        if step == 90:
            envs._envs.engine.use_lanes = True
        same(envs.step(np.array([0, 1, 2, 3])), other.step(np.array([0, 1, 2, 3])))
