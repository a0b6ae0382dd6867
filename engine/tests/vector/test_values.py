"""Values of any kind: what is taken apart on its way is put together again as it was."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from envlanes import Engine, EnvSpec, Settings
from envlanes.gym.game import GYM, GymTurn
from support.gym_envs import same
from support.leftovers import kill_workers


class Point(NamedTuple):
    """Not of the engine, so never taken apart."""

    x: int
    y: int


VALUES = [
    np.zeros(3, np.float32),
    np.zeros((), np.int8),
    np.eye(3)[:, ::2],
    np.float64(1),
    np.zeros(10_000),
    {"a": np.ones(2), "b": 1.0},
    np.array([np.nan]),
    np.arange(84 * 84 * 3).reshape(84, 84, 3)[::-1, 5:-5],
    (1, np.ones(2)),
    np.array(["a", None], object),
    np.str_("bc"),
    [None, True, "text"],
    GymTurn(np.int64(2), 1, 5, {"a": 1}),
    GymTurn(Path("/")),
]
ALIKE = [  # batches of one kind, which travel as columns
    VALUES,
    [np.full(3, i, ">f4") for i in range(3)],
    [np.full((2, 2), i, np.uint8, order="F") for i in range(3)],
    [np.array(i) for i in range(3)],
    [np.ones(i) for i in range(3)],
    [np.ones((0, 2))] * 2,
    [np.float32(i) for i in range(3)],
    [np.datetime64("2020"), np.datetime64("2020-01-01")],
    [np.str_("a"), np.str_("a\0")],
    [np.array([i], object) for i in range(3)],
    [(), ()],
    [((1, np.ones(2)), 0), ((2, np.zeros(2)), 1)],
    [GymTurn(np.int64(i), options={"a": np.ones(i)}) for i in range(3)],
    [Point(1, 2), Point(3, 4)],
    [True, 1, 1.0],
]


class Echo:
    """Returns the values that it is given."""

    def reset(self, seed=None, options=None):
        return options["value"], {}

    def step(self, action):
        return action, 0.0, False, False, {"value": action}


@pytest.mark.parametrize("times", [1, 8])
@pytest.mark.parametrize("values", ALIKE, ids=range(len(ALIKE)))
def test_values_of_all_environments_arrive_as_they_were_and_arrays_can_be_written_to(values, times):
    given = dict(enumerate([*values] * times))
    specs = [EnvSpec.of(Echo, None, index, game=GYM) for index in given]
    with Engine(specs, Settings.of(use_lanes=True, max_workers=1)) as engine:
        shown = engine.reset(
            dict.fromkeys(given), own_options={index: {"value": each} for index, each in given.items()}
        )
        assert kill_workers(engine.stats())  # so that all are replayed and compared
        played = engine.play({index: GymTurn(each) for index, each in given.items()})
    for index, value in given.items():
        for found in (shown[index].observation, played[index].observation, played[index].info["value"]):
            assert type(found) is type(value)
            same(*(tuple(each) if isinstance(each, tuple) else each for each in (found, value)))
            assert not isinstance(found, np.ndarray) or found.flags.writeable
