"""What the buffer holds, in which order, and the returns of it."""

import numpy as np
import pytest

from ragen.cage2.buffer import ParallelTrajectoryBuffer
from ragen.errors import InputError, StateError


def test_trajectories_are_flat_and_time_major():
    buffer, order = ParallelTrajectoryBuffer(2), np.array([0, 1, 10, 11, 20, 21])
    for row in order.reshape(3, 2):
        buffer.add(row[:, None], row, row / 2, row > 10, row / 4, row / 8)
    flat = buffer.get_trajectories()
    assert (flat["n_envs"], flat["n_steps"], len(buffer)) == (2, 3, 3) and (flat["states"] == order[:, None]).all()
    columns = {"actions": order, "rewards": order / 2, "dones": order > 10, "log_probs": order / 4, "values": order / 8}
    assert all(np.array_equal(flat[name], column) for name, column in columns.items())


def test_log_probs_and_values_may_be_left_out():
    buffer, zeros = ParallelTrajectoryBuffer(2), np.zeros(2)
    for log_probs in (None, zeros):
        buffer.add(np.zeros((2, 1)), zeros, zeros, zeros, log_probs)
    assert buffer.get_trajectories()["log_probs"] is buffer.get_trajectories()["values"] is None
    with pytest.raises(InputError):
        buffer.add(np.zeros((2, 1)), np.zeros(3), zeros)


def test_returns_are_those_of_the_definition_cut_or_ended_or_going_on():
    buffer = ParallelTrajectoryBuffer(3)
    for dones, cut_values in (([0, 0, 1], [9, 9, 0]), ([0, 1, 0], [9, 4, 9]), ([0, 0, 0], [9, 9, 9])):
        buffer.add(np.zeros((3, 1)), np.zeros(3, int), np.ones(3), dones, cut_values=cut_values)
    found = buffer.compute_returns(0.5, np.array([8.0, 2.0, 0.0])).reshape(3, 3)
    assert found.T.tolist() == [[2.75, 3.5, 5.0], [2.5, 3.0, 2.0], [1.0, 1.5, 1.0]]


def test_an_empty_buffer_says_so_and_a_reset_empties_it():
    buffer = ParallelTrajectoryBuffer(1)
    buffer.add(np.zeros((1, 1)), np.zeros(1), np.zeros(1))
    buffer.reset()
    for ask in (buffer.get_trajectories, lambda: buffer.compute_returns(0.9)):
        with pytest.raises(StateError):
            ask()
