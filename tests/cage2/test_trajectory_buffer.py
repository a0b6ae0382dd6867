"""What the buffer holds, in which order, and the returns of it."""

import numpy as np
import pytest

from ragen.cage2.buffer import ParallelTrajectoryBuffer
from ragen.errors import InputError, StateError


def test_trajectories_are_flat_and_time_major():
    buffer = ParallelTrajectoryBuffer(2)
    for step in (0, 10, 20):
        row = np.array([step, step + 1])
        buffer.add(row[:, None], row, row / 2, row > 10, row / 4, row / 8)
    flat, order = buffer.get_trajectories(), np.array([0, 1, 10, 11, 20, 21])
    assert (flat["n_envs"], flat["n_steps"], len(buffer)) == (2, 3, 3)
    columns = {"actions": order, "rewards": order / 2, "dones": order > 10, "log_probs": order / 4, "values": order / 8}
    for name, column in {**columns, "states": order[:, None]}.items():
        assert np.array_equal(flat[name], column), name


def test_log_probs_and_values_may_be_left_out():
    buffer = ParallelTrajectoryBuffer(2)
    buffer.add(np.zeros((2, 1)), np.zeros(2, int), np.zeros(2), np.zeros(2))
    buffer.add(np.zeros((2, 1)), np.zeros(2, int), np.zeros(2), np.zeros(2), np.zeros(2))
    assert buffer.get_trajectories()["log_probs"] is buffer.get_trajectories()["values"] is None
    with pytest.raises(InputError):
        buffer.add(np.zeros((2, 1)), np.zeros(3, int), np.zeros(2))


def test_returns_are_those_of_the_definition_cut_or_ended_or_going_on():
    buffer = ParallelTrajectoryBuffer(3)
    for dones, cut_values in (([0, 0, 1], [9, 9, 0]), ([0, 1, 0], [9, 4, 9]), ([0, 0, 0], [9, 9, 9])):
        buffer.add(np.zeros((3, 1)), np.zeros(3, int), np.ones(3), dones, cut_values=cut_values)
    found = buffer.compute_returns(0.5, np.array([8.0, 2.0, 0.0])).reshape(3, 3)
    assert found.T.tolist() == [[2.75, 3.5, 5.0], [2.5, 3.0, 2.0], [1.0, 1.5, 1.0]]


def test_an_empty_buffer_says_so_and_a_reset_empties_it():
    buffer = ParallelTrajectoryBuffer(1)
    buffer.add(np.zeros((1, 1)), np.zeros(1, int), np.zeros(1))
    buffer.reset()
    assert len(buffer) == 0
    for ask in (buffer.get_trajectories, lambda: buffer.compute_returns(0.9)):
        with pytest.raises(StateError):
            ask()
