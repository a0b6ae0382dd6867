"""Gymnasium environments that make things hard for whoever hosts them, and comparisons of what they give."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Walk(gym.Env[np.ndarray, int]):
    """Walks at random, by its own generator, in episodes that end at random; tells where it stands."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Discrete(5)

    def __init__(self, length=6, render_mode=None):
        self.length, self.render_mode = length, render_mode
        self.gain, self.steps, self.place = 1.0, 0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = float((options or {}).get("start", self.np_random.normal()))
        self.steps = 0
        return self._seen(), {"began": self.place}

    def step(self, action):
        self.steps += 1
        self.place += self.gain * (int(action) - 2) + self.np_random.normal()
        terminated = bool(self.np_random.random() < 1 / self.length)
        info = {"place": self.place, "word": "far", "deep": {"n": self.steps}} if abs(self.place) > 1 else {}
        return self._seen(), self.place / 3, terminated, self.steps >= 2 * self.length, info

    def push(self, distance):
        self.place += distance
        return self.place

    def render(self):
        return np.full((4, 4, 3), self.steps, np.uint8)

    def _seen(self):
        return np.array([self.place, self.steps, self.np_random.random()], np.float32)


class TellsItsProcess(Walk):
    """Shows where it is played."""

    def _seen(self):
        return np.array([os.getpid(), self.steps, 0], np.float32)


class Global(Walk):
    """Draws from the global generators, which it seeds."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        return super().reset(seed=seed, options=options)

    def _seen(self):
        return np.array([random.random(), np.random.random(), self.place], np.float32)


class Counted(Walk):
    """Writes a line into a file when it is built or reset."""

    def __init__(self, path):
        super().__init__(length=3)
        self._path = path
        self._write("built")

    def reset(self, **given):
        self._write("reset")
        return super().reset(**given)

    def _write(self, word):
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(word + "\n")


class Obeys(Walk):
    """Does what the action says: 1 raises, 2 hangs, 3 ends its process, 4 waits a little; in its first life only.

    Attributes:
        lives: A file that exists once it has done so; None to do so each time.
    """

    def __init__(self, lives=None):
        super().__init__(length=10**9)
        self._lives = lives

    def step(self, action):
        if action in (1, 2, 3) and not (self._lives and os.path.exists(self._lives)):
            if self._lives:
                open(self._lives, "w").close()
            if action == 1:
                raise ValueError("told to")
            if action == 3:
                os._exit(3)
            time.sleep(600)
        if action == 4:
            time.sleep(0.3)
        return super().step(0)


class Samples(gym.Env[Any, Any]):
    """Shows samples of any space, from the space's own generator, which goes on from episode to episode."""

    def __init__(self, space):
        self.observation_space, self.action_space, self.steps = space, space, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 3, False, {}


def walks(count, kind=Walk, **given):
    """Functions that build so many."""
    return [lambda: kind(**given)] * count


def same(one, other):
    """Assert that two values are equal bit for bit, in types and shapes too."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, dict):
        assert list(one) == list(other), (one, other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            same(mine, its)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape, (one, other)
        if one.dtype == object:
            same(list(one.ravel()), list(other.ravel()))
        else:
            assert one.tobytes() == other.tobytes(), (one, other)
    else:
        assert one == other or repr(one) == repr(other), (one, other)


def same_runs(one, other, steps, kill_at=()):
    """Assert that two vector environments give the same for the same actions; the first one's workers are killed."""
    same(one.reset(seed=5), other.reset(seed=5))
    one.action_space.seed(0)
    for step in range(steps):
        if step in kill_at:
            kill(one)
        actions = one.action_space.sample()
        mine, its = one.step(actions), other.step(actions)
        same(mine, its)
        over = mine[2] | mine[3]
        if one.metadata["autoreset_mode"].value == "Disabled" and over.any():
            same(*[each.reset(options={"reset_mask": over.copy()}) for each in (one, other)])


def kill(envs):
    """Kill all workers of a vector environment, as an outsider does, and wait until they are gone."""
    from support.leftovers import kill_workers  # which marks the process that imports it

    assert kill_workers(envs.stats())
