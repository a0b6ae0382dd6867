"""Environments that return something other than they have to: refused alike in main and in workers."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from envlanes.errors import ReturnError
from envlanes.ragen.step import success_of
from envlanes.ragen.turn import TEXT, Turn
from support.episodes import EnvStateManager, config, errors, play
from support.toy_envs import BaseEnv


class Given(BaseEnv):
    """Returns what it is told to."""

    uses_global_rng = False
    step_gives: Any = ("seen", 1.0, True, {})
    render_gives: Any = "seen"

    def __init__(self, step_gives=None, render_gives=None):
        if step_gives is not None:
            self.step_gives = step_gives
        if render_gives is not None:
            self.render_gives = render_gives

    def reset(self, seed=None, mode=None):
        return None

    def step(self, action):
        return self.step_gives

    def render(self, mode=None):
        return self.render_gives


NO_STEPS: list[Any] = [
    ("seen", 1.0, True),
    ("seen", 1.0, True, False, {}),
    (),
    object(),
    *[("seen", 1.0, done, {}) for done in (None, np.array([True, False]), "no", "", {"over": False})],
    ("seen", 1.0, True, None),
    *[("seen", 1.0, True, {"success": success}) for success in ("no", "", math.nan, [])],
    *[("seen", reward, False, {}) for reward in (math.nan, -math.inf, np.float16("inf"), np.array(-np.inf))],
    *[("seen", reward, False, {}) for reward in (np.array([np.nan]), Decimal("NaN"), 10**400, 1e300, None)],
    *[("seen", reward, False, {}) for reward in ("1", b"1", [1.0], 1j, np.array([1.0, 2.0]))],
]


@pytest.mark.parametrize("given", NO_STEPS, ids=range(len(NO_STEPS)))
def test_what_is_no_step_is_refused(given):
    with pytest.raises(ReturnError, match=r"^Given\.step\(\) returned"):
        TEXT.play(Given(given), Turn(("go",), 1))


@pytest.mark.parametrize("given", [5, {}, [0, 17], [[[1], [2, 3]]], np.zeros((2, 2))])
def test_what_is_neither_text_nor_image_is_refused(given):
    with pytest.raises(ReturnError, match=r"^Given\.render\(\) returned"):
        TEXT.reset(Given(render_gives=given), 1, {})


REWARDS = [1, np.float32(0.5), np.array([0.5]), np.array([[0.5]], np.float32), Fraction(1, 2), Decimal("0.5")]
SUCCESSES = [True, False, None, 0, 1, 0.0, 0.5, 1.0, np.True_, np.int64(0), np.array([True])]


@pytest.mark.parametrize("reward", REWARDS, ids=repr)
def test_what_holds_one_number_is_that_number(reward):
    found = TEXT.play(Given(("seen", reward, 1, {})), Turn(("go",), 1)).reward
    assert float(found) == float(np.asarray(reward).item())


@pytest.mark.parametrize("success", SUCCESSES, ids=repr)
def test_what_stands_for_a_success_or_none_is_taken(success):
    result = TEXT.play(Given(["seen", 1.0, np.True_, {"success": success}]), Turn(("go",), 1))
    assert result.done is True and result.info["success"] == success


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({"won": True}, True),
        ({"task_success": 0, "won": np.True_}, True),
        ({"is_success": np.array([1.0])}, True),
        ({"success": False, "won": True}, False),
        ({"success": None, "won": True}, True),
        ({"won": "white"}, None),
        ({"score": 1}, None),
    ],
)
def test_success_is_found_by_its_names(info, success):
    assert success_of(info) is success


class Odd(Given):
    """In the episodes of even seeds its reward is NaN; its info shows an address, which differs in each process."""

    def __init__(self, config=None):
        super().__init__()

    def reset(self, seed=None, mode=None):
        self.step_gives = "seen", math.nan if seed is not None and seed % 2 == 0 else 1.0, True, {"success": True}


class ThreeValues(Odd):
    def step(self, action):
        return "seen", 1.0, object()


def test_main_and_workers_say_the_same_and_no_other_environment_fails():
    told = []
    for parallel in (False, True):
        tags = {tag: {"env_type": f"{__name__}:{tag}"} for tag in ("Odd", "ThreeValues")}
        with EnvStateManager(config(tags, [("Odd", 2), ("ThreeValues", 1)], use_multiprocessing=parallel)) as manager:
            failed, fine, three = play(manager, 1)
        told.append([errors(rollout)[-1] for rollout in (failed, fine, three)])
        assert failed["history"][0]["reward"] == 0 and failed["metrics"]["Odd/success"] == 0.0
        assert "env_error" not in fine and fine["metrics"]["Odd/success"] == 1.0
    assert told[0] == told[1]
    assert ["ReturnError" in str(each) for each in told[0]] == [True, False, True]
