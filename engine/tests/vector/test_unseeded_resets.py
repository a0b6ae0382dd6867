"""Resets without a seed go on with what the last episode has left, whatever happens to an environment's home."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envlanes.gym import LaneVectorEnv
from support.gym_envs import kill

ENVS, STEPS = 3, 9
KILLS = {0, 3, 5, 8}  # steps before which workers are kill: each starts anew, so before resets and within episodes


class Draws(gym.Env):
    """Draws what it shows, and ends after three steps."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 3
        return self.np_random.random(2), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        return self.np_random.random(2), float(self.np_random.random()), self.left == 0, False, {}


class OldDraws(Draws):
    """The same, of the interface before gymnasium."""

    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)[0]

    def step(self, action: int) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


def brought_home(envs: LaneVectorEnv) -> None:
    envs._envs.engine.move_to_main(range(ENVS))


def switched(envs: LaneVectorEnv) -> None:
    engine = envs._envs.engine
    engine.use_lanes = not engine.use_lanes


def nothing(envs: Any) -> None:
    """No change."""


def played(envs: Any, resets: str, change: Callable[[Any], None]) -> list[Any]:
    """What a run shows that is disturbed before its steps and resets, but the first."""
    mask = np.array([True, False, True])
    seen: list[Any] = [envs.reset(seed=5)[0]]
    for step in range(STEPS):
        if change is not kill or step in KILLS:
            change(envs)
        if resets == "plain" and step % 4 == 3:
            seen.append(envs.reset()[0])
        if resets == "mask" and step % 3 == 2:
            seen.append(envs.reset(options={"reset_mask": mask})[0])
        if resets == "disabled" and step % 3 == 0 and step:
            seen.append(envs.reset(options={"reset_mask": np.ones(ENVS, bool)})[0])
        observations, rewards, terminated, *_ = envs.step(np.zeros(ENVS, int))
        seen += [observations, rewards, terminated]
    envs.close()
    return [np.asarray(each).tolist() for each in seen]


MODES = {
    "plain": AutoresetMode.NEXT_STEP,
    "mask": AutoresetMode.NEXT_STEP,
    "next step": AutoresetMode.NEXT_STEP,
    "same step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


@pytest.mark.parametrize(
    ("resets", "change", "backend"),
    [
        *itertools.product(MODES, (nothing, kill, brought_home, switched), ("process",)),
        *itertools.product(("plain", "mask"), (kill,), ("executor",)),
    ],
)
def test_an_episode_without_a_seed_is_the_same_at_whatever_home(
    resets: str, change: Callable[[Any], None], backend: str
) -> None:
    expected = played(SyncVectorEnv([Draws] * ENVS, autoreset_mode=MODES[resets]), resets, nothing)
    envs = LaneVectorEnv([Draws] * ENVS, workers=2, backend=backend, autoreset_mode=MODES[resets], max_restarts=99)
    assert played(envs, resets, change) == expected


@pytest.mark.parametrize("change", [kill, brought_home])
def test_so_is_one_of_the_old_interface(change: Callable[[Any], None]) -> None:
    expected = played(SyncVectorEnv([Draws] * ENVS), "plain", nothing)
    envs = LaneVectorEnv([OldDraws] * ENVS, workers=2, old_api=True, max_restarts=99)
    assert played(envs, "plain", change) == expected


class Saves(Draws):
    """Has a generator of its own that nobody finds, and declares snapshots; counts steps in its process."""

    def __init__(self) -> None:
        self.hidden = [np.random.default_rng(0)]
        self.made = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.hidden[0] = np.random.default_rng(seed)
        self.left = 99
        return self.hidden[0].random(2), {}

    def step(self, action: int) -> Any:
        self.made += 1
        return self.hidden[0].random(2), 0.0, False, False, {"made": self.made}

    def save(self) -> Any:
        return self.left, self.hidden[0]

    def load(self, state: Any) -> None:
        self.left, self.hidden[0] = state


@pytest.mark.parametrize("backend", ["process", "executor"])
def test_a_snapshot_brings_back_what_no_generator_that_is_found_decides(backend: str) -> None:
    expected = played(SyncVectorEnv([Saves] * ENVS), "plain", nothing)
    assert played(LaneVectorEnv([Saves] * ENVS, workers=2, backend=backend, max_restarts=99), "plain", kill) == expected


def pong() -> Any:
    import ale_py  # noqa: F401  # which registers it

    return gym.make("ALE/Pong-v5", obs_type="ram", max_episode_steps=5)


def test_atari_is_rebuilt_whose_generator_is_not_pythons() -> None:
    pytest.importorskip("ale_py")
    mode = {"autoreset_mode": MODES["next step"]}
    expected = played(SyncVectorEnv([pong] * ENVS, **mode), "next step", nothing)
    envs = LaneVectorEnv([partial(pong)] * ENVS, workers=2, max_restarts=99, **mode)
    assert played(envs, "next step", kill) == expected
