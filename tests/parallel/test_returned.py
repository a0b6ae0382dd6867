"""Environments that return something else than they have to: what is said of it, alike in main and in lanes."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from envlanes.episode.turn import RAGEN, Turn
from envlanes.games.gym_game import GYM, GymTurn
from envlanes.games.gym_old import GYM_OLD
from envlanes.returned import success_of
from ragen.cage2.env import Cage2Env
from ragen.container.game import ACTIONS
from ragen.env import BaseLanguageBasedEnv
from ragen.errors import ReturnError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.meta.manager import META
from ragen.tools.check import check_parallel
from support.episodes import config, errors, play

FOUR = "(observation, reward, done, info)"
FIVE = "(observation, reward, terminated, truncated, info)"


class Given(BaseLanguageBasedEnv):
    """Returns what it is told to."""

    uses_global_rng = False
    step_gives: Any = ("seen", 1.0, True, {})
    render_gives: Any = "seen"

    def __init__(self, config: Any = None) -> None:
        pass

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        return None

    def step(self, action: str) -> Any:
        return self.step_gives

    def render(self, mode: str | None = None) -> Any:
        return self.render_gives


class ThreeValues(Given):
    @property
    def step_gives(self) -> Any:  # type: ignore[override]
        return "seen", 1.0, object()


STEPS = {
    "3 values, ('seen', 1.0, True); expected 4 values " + FOUR: ("seen", 1.0, True),
    "5 values, ('seen', 1.0, True, False, {}); expected 4 values " + FOUR + "; five are gymnasium's: done is "
    "'terminated or truncated'": ("seen", 1.0, True, False, {}),
    "None; expected a tuple " + FOUR: None,
    "<object object> (object); expected a tuple " + FOUR: object(),
    "'1.0' (str) as reward; expected a finite number": ("seen", "1.0", True, {}),
    "array([1., 2.]) (ndarray) as reward; expected a finite number": ("seen", np.array([1.0, 2.0]), True, {}),
    "1j (complex) as reward; expected a finite number": ("seen", 1j, True, {}),
    "None as done; expected True or False": ("seen", 1.0, None, {}),
    "array([ True, False]) (ndarray) as done; expected True or False": ("seen", 1.0, np.array([True, False]), {}),
    "'no' (str) as done; expected True or False": ("seen", 1.0, "no", {}),
    "'' (str) as done; expected True or False": ("seen", 1.0, "", {}),
    "{'over': False} (dict) as done; expected True or False": ("seen", 1.0, {"over": False}, {}),
    "None as info; expected a dict": ("seen", 1.0, True, None),
    "'no' (str) as info['success']; expected True or False": ("seen", 1.0, True, {"success": "no"}),
    "nan (float) as info['success']; expected True or False": ("seen", 1.0, True, {"success": math.nan}),
    "'' (str) as info['success']; expected True or False": ("seen", 1.0, False, {"success": ""}),
    "[] (list) as info['success']; expected True or False": ("seen", 1.0, True, {"success": []}),
}


@pytest.mark.parametrize("said", STEPS)
def test_a_step_that_is_none_is_told_with_what_came_and_what_was_expected(said: str) -> None:
    env = Given()
    env.step_gives = STEPS[said]
    with pytest.raises(ReturnError) as caught:
        RAGEN.play(env, Turn(("go",), 1))
    assert str(caught.value) == f"Given.step() returned {said}"


@pytest.mark.parametrize("given", [("seen", np.float32(0.5), np.True_, {}), ["seen", True, 1, {"a": 1}]])
def test_what_stands_for_numbers_and_flags_is_taken(given: Any) -> None:
    env = Given()
    env.step_gives = given
    result = RAGEN.play(env, Turn(("go",), 1))
    assert result.reward == given[1] and result.done is True


@pytest.mark.parametrize("success", [True, False, None, 0, 1, 0.0, 0.5, 1.0, np.True_, np.int64(0), np.array([True])])
def test_what_stands_for_a_success_or_none_is_taken(success: Any) -> None:
    env = Given()
    env.step_gives = ("seen", 1.0, True, {"success": success})
    assert RAGEN.play(env, Turn(("go",), 1)).info["success"] == success


@pytest.mark.parametrize("key", ["success", "won", "task_success"])
def test_a_container_takes_no_text_for_a_success(key: str) -> None:
    env = Given()
    env.step_gives = ("seen", 1.0, True, {key: "no"})
    with pytest.raises(ReturnError) as caught:
        ACTIONS.play(env, "go")
    assert str(caught.value) == f"Given.step() returned 'no' (str) as info['{key}']; expected True or False"


@pytest.mark.parametrize("reward", [np.array([0.5]), np.array([[0.5]], np.float32), Fraction(1, 2), Decimal("0.5")])
def test_what_holds_one_number_is_that_number(reward: Any) -> None:
    env = Given()
    env.step_gives = ("seen", reward, True, {})
    result = RAGEN.play(env, Turn(("go",), 1))
    assert type(result.reward) is float and f"{result.reward:g}" == "0.5"


NO_REWARDS = [
    math.nan,
    math.inf,
    -math.inf,
    np.float32("nan"),
    np.float16("inf"),
    np.array(-np.inf),
    np.array([np.nan]),
]
NO_REWARDS += [Decimal("NaN"), 10**400, 1e300, None, "1", b"1", [1.0], 1j, np.array([1.0, 2.0])]


@pytest.mark.parametrize("reward", NO_REWARDS, ids=repr)
@pytest.mark.parametrize("kind", ["ragen", "container", "meta", "cage2"])
def test_a_reward_is_a_finite_number_in_every_game(kind: str, reward: Any) -> None:
    env: Any = Given()
    env.step_gives = ("seen", reward, False, {})
    if kind == "cage2":
        env = Cage2Env()
        env.reset(seed=1)
        env.game.step = lambda action: ([0] * 52, reward)
    plays = {
        "ragen": lambda: RAGEN.play(env, Turn(("go",), 1)),
        "container": lambda: ACTIONS.play(env, "go"),
        "meta": lambda: META.play(env, GymTurn("go")),
        "cage2": lambda: GYM.play(env, GymTurn(0)),
    }
    with pytest.raises(ReturnError):
        plays[kind]()


def test_a_turns_rewards_sum_up_to_a_finite_number() -> None:
    env = Given()
    env.step_gives = ("seen", 2.0**60, False, {})
    with pytest.raises(ReturnError):
        RAGEN.play(env, Turn(("go", "go"), 2))


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
        ({}, None),
    ],
)
def test_success_is_found_by_its_names(info: dict[str, Any], success: bool | None) -> None:
    assert success_of(info) is success


@pytest.mark.parametrize("given", [5, None, {}, [[[1], [2, 3]]], np.zeros((2, 2))])
def test_what_is_neither_text_nor_image_is_told(given: Any) -> None:
    env = Given()
    env.render_gives = given
    with pytest.raises(ReturnError, match=r"^Given\.render\(\) returned .*; expected text, a uint8 array of shape"):
        RAGEN.reset(env, 1, {})


class GymGiven:
    """The same by gymnasium's interface."""

    def __init__(self, reset_gives: Any = (0, {}), step_gives: Any = (0, 1.0, False, False, {})) -> None:
        self.reset_gives, self.step_gives = reset_gives, step_gives

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self.reset_gives

    def step(self, action: Any) -> Any:
        return self.step_gives


@pytest.mark.parametrize("given", [None, (0,), np.zeros(2), (0, None)])
def test_gymnasiums_reset_has_to_give_observation_and_info(given: Any) -> None:
    with pytest.raises(ReturnError, match=r"^GymGiven\.reset\(\) returned .*; expected a tuple \(observation, info\)"):
        GYM.reset(GymGiven(reset_gives=given), 1, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0, 1.0, True, {}), f"4 values, (0, 1.0, True, {{}}); expected 5 values {FIVE}"),
        ((0, "much", False, False, {}), "'much' (str) as reward; expected a finite number"),
        (None, f"None; expected a tuple {FIVE}"),
    ],
)
def test_gymnasiums_step_has_to_give_five_values(given: Any, said: str) -> None:
    with pytest.raises(ReturnError) as caught:
        GYM.play(GymGiven(step_gives=given), GymTurn(0))
    assert str(caught.value) == f"GymGiven.step() returned {said}"


def test_the_old_interface_may_give_four_or_five() -> None:
    assert GYM_OLD.play(GymGiven(step_gives=(0, 1.0, True, {})), GymTurn(0)).terminated
    with pytest.raises(ReturnError, match=r"3 values, .* expected 4 values"):
        GYM_OLD.play(GymGiven(step_gives=(0, 1.0, True)), GymTurn(0))


def test_main_lanes_and_the_checker_say_the_same() -> None:
    """The value has an address in its repr, which is another one in each process."""
    said = (
        f"ReturnError: ThreeValues.step() returned 3 values, ('seen', 1.0, <object object>); expected 4 values {FOUR}"
    )
    for parallel in (False, True):
        tags = {"Three": {"env_type": f"{__name__}:ThreeValues"}}
        with EnvStateManager(config(tags, [("Three", 2)], use_multiprocessing=parallel)) as manager:
            rollouts = play(manager, 1)
        assert [errors(rollout)[-1] for rollout in rollouts] == [said, said]
    assert check_parallel(ThreeValues, turns=1).difference.got == said


class PaysNothingKnown(Given):
    """Its reward is NaN in the episodes of even seeds."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        self.step_gives = "seen", math.nan if seed is not None and seed % 2 == 0 else 1.0, True, {"success": True}


@pytest.mark.parametrize("parallel", [False, True])
def test_an_unknown_reward_fails_its_environment_and_no_other(parallel: bool) -> None:
    tags = {"Odd": {"env_type": f"{__name__}:PaysNothingKnown"}}
    with EnvStateManager(config(tags, [("Odd", 2)], use_multiprocessing=parallel)) as manager:
        failed, fine = play(manager, 1)
    assert "ReturnError" in failed["env_error"] and "env_error" not in fine
    assert failed["history"][0]["reward"] == 0 and failed["metrics"]["Odd/success"] == 0.0
    assert fine["metrics"]["Odd/success"] == 1.0


def test_a_list_that_holds_no_images_is_told_whole() -> None:
    env = Given()
    env.render_gives = [0, 17]
    with pytest.raises(ReturnError, match=r"^Given\.render\(\) returned \[0, 17\] \(list\); expected text"):
        RAGEN.reset(env, 1, {})
