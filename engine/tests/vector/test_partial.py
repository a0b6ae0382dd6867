"""Stepping some, and sending and receiving."""

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import SyncVectorEnv

from envlanes.errors import StateError
from support.gym_envs import Obeys, kill, same, walks

pytestmark = pytest.mark.processes


def rows(stepped):
    """The rows of what was stepped, by environment."""
    observations, rewards, terminated, truncated, infos = stepped
    columns = zip(infos["env_id"].tolist(), observations, rewards, terminated, truncated, strict=True)
    return {index: tuple(row) for index, *row in columns}


def test_some_are_stepped_while_others_stay(lanes):
    envs, alone = lanes(walks(4)), [SyncVectorEnv(walks(1)) for _ in range(4)]
    envs.reset(seed=0)
    for index, each in enumerate(alone):
        each.reset(seed=index)
    for ids in ([2], [3, 0], [0, 1, 2, 3], [2, 1], [0], [0]):
        if ids == [2, 1]:
            kill(envs)
        stepped = envs.step_some(ids, np.array(list(ids)))
        assert stepped[4]["env_id"].tolist() == ids
        for row, index in enumerate(ids):
            its = alone[index].step(np.array([index]))
            for mine, expected in zip(stepped[:4], its[:4], strict=True):
                same(mine[row : row + 1], expected)
    for wrong in ([], [1, 1], [4]):
        with pytest.raises(ValueError, match="ids"):
            envs.step_some(wrong, np.zeros(len(wrong), int))


def test_what_is_sent_is_received_by_those_that_are_done(lanes):
    envs, other = lanes(walks(4, Obeys)), SyncVectorEnv(walks(4, Obeys))
    envs.reset(seed=0), other.reset(seed=0)
    slow = [index for index in range(4) if envs._envs.engine.home(index) == envs._envs.engine.home(0)]
    actions = np.where(np.isin(np.arange(4), slow), 4, 0)
    expected = other.step(actions)
    envs.send(actions)
    with pytest.raises(AlreadyPendingCallError):
        envs.step(actions)
    with pytest.raises(AlreadyPendingCallError):
        envs.step_some([0], actions[:1])
    first = rows(envs.recv())
    assert not set(first) & set(slow)
    found = first | rows(envs.recv(len(slow)))
    for index, (observation, reward, terminated, truncated) in found.items():
        same(observation, expected[0][index])
        assert (reward, terminated, truncated) == tuple(column[index] for column in expected[1:4])
    with pytest.raises(StateError, match="0 were sent"):
        envs.recv()


def test_in_order_what_comes_back_does_not_depend_on_who_was_quicker(lanes):
    envs = lanes(walks(4, Obeys))
    envs.reset(seed=0)
    envs.send(np.array([4, 0]), [3, 0])
    envs.send(np.zeros(2, int), [1, 2])
    assert [list(rows(envs.recv(count, in_order=True))) for count in (1, 3)] == [[3], [0, 1, 2]]
