"""Global random numbers belong to each environment, however environments are interleaved and wherever they live."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envlanes.episode.global_rng import EnvRng, outer_state_kept
from support.episodes import EnvStateManager, config, freeze, inputs, play, sequential

DRAWS: dict[str, Callable[[], Any]] = {
    "random.random": random.random,
    "random.gauss": lambda: [random.gauss(0, 1) for _ in range(3)],
    "random.shuffle": lambda: random.sample(range(100), 10),
    "numpy.random.rand": lambda: np.random.rand(3).tolist(),
    "numpy.random.randint": lambda: np.random.randint(0, 1000, 4).tolist(),
    "numpy.random.shuffle": lambda: np.random.permutation(20).tolist(),
}


@pytest.fixture(autouse=True)
def own_state():
    """Leave the generators of the test run as they were."""
    with outer_state_kept():
        yield


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_are_those_after_seeding_the_global_generators(draw):
    random.seed(7)
    np.random.seed(7)
    expected = [draw() for _ in range(3)]
    rng = EnvRng(7)
    got = []
    for _ in range(3):
        with outer_state_kept(), rng.in_place():
            got.append(draw())
        random.random()
        np.random.rand()
    assert got == expected


def test_the_outer_state_is_left_alone_to_the_last_held_back_gaussian():
    random.seed(2)
    np.random.seed(2)
    np.random.normal()
    random.gauss(0, 1)
    with outer_state_kept():
        inside = EnvRng(9)
        with inside.in_place():
            np.random.normal()
            random.gauss(0, 1)
        np.random.seed(1)
    got = np.random.normal(), random.gauss(0, 1), np.random.rand(), random.random()
    random.seed(2)
    np.random.seed(2)
    np.random.normal()
    random.gauss(0, 1)
    assert got == (np.random.normal(), random.gauss(0, 1), np.random.rand(), random.random())


def drawing(**settings):
    tags = {"Draws": {"env_type": "support.faulty_envs:GlobalDraws"}, "Walk": {"env_type": "support.faulty_envs:Walk"}}
    return config(tags, [("Draws", 2), ("Walk", 1), ("Draws", 1)], group_size=2, **settings)


def test_stepping_in_another_order_changes_nothing():
    settings = drawing(use_multiprocessing=False)
    with EnvStateManager(settings) as manager:
        manager.reset()
        for turn in range(3):
            for env_id in reversed(range(8)):
                manager.step(inputs([env_id], turn))
        assert freeze(manager.get_rollout_states()) == sequential(settings, turns=3)[0]


@pytest.mark.parametrize("parallel", [False, True])
def test_the_users_own_random_numbers_are_not_touched(parallel):
    random.seed(4)
    np.random.seed(4)
    expected = random.random(), np.random.rand()
    random.seed(4)
    np.random.seed(4)
    with EnvStateManager(drawing(use_multiprocessing=parallel)) as manager:
        play(manager)
    assert (random.random(), np.random.rand()) == expected
