"""What the buffer holds, in which order, and the returns of it."""

import numpy as np
import pytest

from ragen.cage2.buffer import ParallelTrajectoryBuffer
from ragen.errors import InputError, StateError


def filled(steps=4, n_envs=3, dones=None, seed=0):
    rng = np.random.default_rng(seed)
    buffer, rows = ParallelTrajectoryBuffer(n_envs), []
    for step in range(steps):
        done = np.zeros(n_envs, bool) if dones is None else np.array(dones[step], bool)
        row = (rng.random((n_envs, 2)), rng.integers(9, size=n_envs), rng.random(n_envs), done, rng.random(n_envs))
        cut_values = rng.random(n_envs)
        buffer.add(*row, values=rng.random(n_envs), cut_values=cut_values)
        rows.append((*row, cut_values))
    return buffer, rows


def test_trajectories_are_flat_and_time_major():
    buffer, rows = filled()
    flat = buffer.get_trajectories()
    assert (flat["n_envs"], flat["n_steps"], len(buffer)) == (3, 4, 4)
    for step in range(4):
        for env_id in range(3):
            row = step * 3 + env_id
            assert (flat["states"][row] == rows[step][0][env_id]).all()
            for place, name in enumerate(("actions", "rewards", "dones", "log_probs"), 1):
                assert flat[name][row] == rows[step][place][env_id]
    assert flat["values"].shape == (12,)


def test_log_probs_and_values_may_be_left_out():
    buffer = ParallelTrajectoryBuffer(2)
    buffer.add(np.zeros((2, 1)), np.zeros(2, int), np.zeros(2), np.zeros(2))
    assert buffer.get_trajectories()["log_probs"] is buffer.get_trajectories()["values"] is None
    with pytest.raises(InputError):
        buffer.add(np.zeros((2, 1)), np.zeros(2, int), np.zeros(2), np.zeros(2), np.zeros(2))


def test_returns_are_those_of_the_definition_cut_or_ended_or_going_on():
    dones = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0, 0)]
    buffer, rows = filled(5, dones=dones)
    last = np.array([5.0, 7.0, 11.0])
    found = buffer.compute_returns(0.9, last).reshape(5, 3)
    for env_id in range(3):
        for step in range(5):
            expected, weight = 0.0, 1.0
            for later in range(step, 5):
                expected += weight * rows[later][2][env_id]
                weight *= 0.9
                if rows[later][3][env_id]:
                    expected += weight * rows[later][5][env_id]  # what the rest of a cut episode is worth
                    break
            else:
                expected += weight * last[env_id]
            assert found[step, env_id] == pytest.approx(expected)


def test_an_empty_buffer_says_so_and_a_reset_empties_it():
    buffer, _ = filled()
    buffer.reset()
    assert len(buffer) == 0
    for ask in (buffer.get_trajectories, lambda: buffer.compute_returns(0.9)):
        with pytest.raises(StateError):
            ask()
