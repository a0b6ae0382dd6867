"""A group is reset once and copied where that is known to be right, and only there."""

import itertools
import sys
import threading
import time
import weakref
from typing import ClassVar

import pytest

from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, errors, freeze, inputs, play
from support.faulty_envs import Walk

GROUP = 4
TURNS = 3


class Slow(Walk):
    """Takes its time to reset, and counts how often."""

    resets = 0

    def reset(self, seed=None, mode=None):
        type(self).resets += 1
        time.sleep(0.001)
        return super().reset(seed, mode)


class _Elsewhere:
    """An attribute that is kept by the object, but not in it."""

    def __init__(self):
        self.values = weakref.WeakKeyDictionary()

    def __get__(self, env, owner):
        return self if env is None else self.values.get(env, 0)

    def __set__(self, env, value):
        self.values[env] = value


class Hidden(Slow):
    """Keeps its place where no picture shows it."""

    place = _Elsewhere()


class Secret(Slow):
    """Shows nothing of what decides its rewards, which it keeps by its id."""

    secrets: ClassVar[dict] = {}

    def reset(self, seed=None, mode=None):
        self.secrets[id(self)] = seed
        return super().reset(seed, mode)

    def step(self, action):
        observation, _, done, info = super().step(action)
        return observation, float(self.secrets[id(self)]), done, info


class Picky(Slow):
    """Raises at every action but its own."""

    def step(self, action):
        if set(action) - set("ab"):
            raise ValueError(action)
        return super().step(action)


class Counts(Slow):
    """Shows how often it was reset."""

    times = 0

    def reset(self, seed=None, mode=None):
        self.times += 1
        return super().reset(seed, mode)

    def sight(self):
        return f"{super().sight()} {self.times}"


class Exits(Slow):
    """Ends the interpreter at what is no action of its own."""

    def step(self, action):
        if set(action) - set("ab"):
            sys.exit(2)
        return super().step(action)


class Hangs(Slow):
    """Hangs at what is no action of its own."""

    def step(self, action):
        if set(action) - set("ab"):
            threading.Event().wait()
        return super().step(action)


class VerySlow(Walk):
    """Takes a good part of the time that a reset may take."""

    def reset(self, seed=None, mode=None):
        time.sleep(0.6)
        return super().reset(seed, mode)


class Closes(Slow):
    """Takes away what all share when it is closed."""

    shared: ClassVar[set] = set()

    def __init__(self, config=None):
        self.shared.add("something")
        super().__init__(config)

    def step(self, action):
        assert self.shared
        return super().step(action)

    def close(self):
        self.shared.clear()


def manager(kind, mode=False, **settings):
    tags = {"Tag": {"env_type": f"{__name__}:{kind.__name__}"}}
    return EnvStateManager(config(tags, [("Tag", 3)], group_size=GROUP, use_multiprocessing=mode, **settings))


def by_hand(kind, status, history, env_id):
    """The rewards of an episode, and what was shown, without any manager."""
    env = kind()
    env.reset(seed=status.seed)
    told = [(None, env.render())]
    for turn in itertools.count():
        if turn == len(history) - 1:
            return told
        (given,) = inputs([env_id], turn)
        reward = 0
        for action in given["actions"]:
            _, gained, done, _ = env.step(action)
            reward += gained
            if done:
                break
        told.append((reward, env.render()))


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("kind", [Slow, Hidden, Secret, Picky])
def test_rollouts_are_those_of_environments_that_were_each_reset(kind, mode):
    with manager(kind, mode) as played:
        for _ in range(3):
            rollouts = freeze(play(played, TURNS))
            for entry, rollout in zip(played.envs, rollouts, strict=True):
                history = rollout["history"]
                rewards = [None, *(turn["reward"] for turn in history[:-1])]
                told = list(zip(rewards, [turn["state"] for turn in history], strict=True))
                assert told == by_hand(kind, entry["status"], history, entry["env_id"])


@pytest.mark.parametrize("mode", [False, True])
def test_no_environment_is_reset_but_when_it_is_asked_for(mode):
    with manager(Counts, mode) as played:
        for episode in range(3):
            rollouts = play(played, TURNS)
            shown = {turn["state"].split()[-1] for rollout in rollouts for turn in rollout["history"]}
            assert shown == {str(episode + 1)}


@pytest.mark.parametrize("mode", [False, True, "auto"])
@pytest.mark.parametrize("kind", [Exits, Hangs, VerySlow, Closes])
def test_trying_a_copy_out_is_nobody_s_failure(kind, mode):
    with manager(kind, mode, reset_timeout=1.5, on_env_failure="truncate") as played:
        rollouts = play(played, TURNS)
        assert not any(lane.restarts for lane in played.lane_stats())
    assert [errors(rollout) for rollout in rollouts] == [[None] * (len(r["history"]) - 1) for r in rollouts]


def resets_of_an_episode(kind):
    """How often environments are reset for an episode, the first one left aside."""
    with manager(kind) as played:
        played.reset()
        kind.resets = 0
        played.reset()
    return kind.resets


@pytest.mark.parametrize("kind", [Slow, Picky])
def test_a_group_of_plain_data_is_reset_once(kind):
    assert resets_of_an_episode(kind) == 3


@pytest.mark.parametrize("kind", [Hidden, Secret])
def test_every_member_is_reset_where_a_copy_does_not_play_alike(kind):
    assert resets_of_an_episode(kind) == 3 * GROUP
