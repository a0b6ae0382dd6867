"""Environments that keep the one rule play alike in every mode, wherever they keep their state.

Nothing is copied: members of a group are each reset.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from support import scripts
from support.episodes import EnvStateManager, config, inputs, play
from support.faulty_envs import Walk

GROUP, GROUPS, TURNS = 4, 2, 5
MODES = [False, True, "auto"]
LEVELS: dict[int, int | None] = {}


class Late(Walk):
    """Its hidden state counts from the sixth action on."""

    def reset(self, seed=None, mode=None):
        self.begin(seed)
        return super().reset(seed, mode)

    def begin(self, seed):
        raise NotImplementedError

    def step(self, action):
        observation, _, _, info = super().step(action)
        return observation, self.hidden() if self.steps > 5 else 0.0, False, info

    def hidden(self):
        raise NotImplementedError


class ById(Late):
    """Keeps its level in a table of its module, by its id, as caches and native handles do."""

    def begin(self, seed):
        LEVELS[id(self)] = seed

    def hidden(self):
        return float(LEVELS.get(id(self)) or -1)


class Viewing(Late):
    """Plays on a view of what its rewards are counted on."""

    def begin(self, seed):
        self.board = np.zeros((3, 3))
        self.row = self.board[1]

    def step(self, action):
        self.row += len(action)
        return super().step(action)

    def hidden(self):
        return float(self.board.sum())


class Side:
    """One of two, known by identity."""


WHITE, BLACK = Side(), Side()


class Constant(Late):
    """Compares with a constant of its module by identity."""

    def begin(self, seed):
        self.side = WHITE

    def step(self, action):
        self.side = BLACK if self.side is WHITE else WHITE
        return super().step(action)

    def hidden(self):
        return float(self.side is WHITE)


class CountingRandom(random.Random):
    """Counts its draws in an attribute, which its pickle forgets."""

    count = 0

    def random(self):
        self.count += 1
        return super().random()


class Counting(Late):
    """Has a generator of a class of its own."""

    def begin(self, seed):
        self.draws = CountingRandom(seed)
        self.draws.random()

    def hidden(self):
        return self.draws.count + self.draws.random()


class Closure(Late):
    """Keeps its level in a closure."""

    def begin(self, seed):
        counter = itertools.count(seed or 0)
        self.next = lambda: next(counter)

    def hidden(self):
        return float(self.next())


class Counts(Walk):
    """Shows how often it was reset."""

    times = 0

    def reset(self, seed=None, mode=None):
        self.times += 1
        return super().reset(seed, mode)

    def sight(self):
        return f"{super().sight()} {self.times}"


HIDERS = [ById, Viewing, Constant, Counting, Closure]


def manager(kind, mode, **settings):
    tags = {"Tag": {"env_type": f"{__name__}:{kind.__name__}"}}
    return EnvStateManager(config(tags, [("Tag", GROUPS)], group_size=GROUP, use_multiprocessing=mode, **settings))


def by_hand(kind, seed, env_id):
    """The rewards of an episode, and what was shown, without any manager."""
    env = kind()
    env.reset(seed=seed)
    told: list[tuple[Any, str]] = [(None, env.render())]
    for turn in range(TURNS):
        (given,) = inputs([env_id], turn)
        told.append((sum(env.step(action)[1] for action in given["actions"]), env.render()))
    return told


def told(rollout):
    history = rollout["history"]
    rewards = [None, *(turn["reward"] for turn in history[:-1])]
    return list(zip(rewards, [turn["state"] for turn in history], strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", HIDERS)
def test_every_mode_gives_what_an_environment_gives_alone(kind, mode):
    with manager(kind, mode) as played:
        for _ in range(3):
            for entry, rollout in zip(played.envs, play(played, TURNS), strict=True):
                assert told(rollout) == by_hand(kind, entry["status"].seed, entry["env_id"])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("backend", "kind"), [*(("process", kind) for kind in HIDERS), ("executor", HIDERS[0])], indirect=["backend"]
)
def test_they_are_moved_and_rebuilt_like_any_other(kind, kill_lanes):
    with manager(kind, True) as played:

        def disturb(turn):
            if turn == 2:
                kill_lanes(played)
            played.use_multiprocessing = turn != 3

        for entry, rollout in zip(played.envs, play(played, TURNS, disturb), strict=True):
            assert told(rollout) == by_hand(kind, entry["status"].seed, entry["env_id"])


@pytest.mark.parametrize("mode", MODES)
def test_no_environment_is_reset_but_when_it_is_asked_for(mode):
    with manager(Counts, mode) as played:
        resets = [0] * len(played.envs)
        for _ in range(3):
            for env_id, rollout in enumerate(play(played, 2)):
                (shown,) = {int(turn["state"].split()[-1]) for turn in rollout["history"]}
                moved = mode == "auto" and shown == 1  # built anew where `auto` has it played from now on
                assert moved or shown == resets[env_id] + 1
                resets[env_id] = shown


# What travels changes nothing of the user's

MAIN = """
    import enum
    from dataclasses import dataclass

    import numpy as np

    BONUS = 1.0

    class Item:
        cache = {}
        def __init__(self, n):
            self.n = n
        def value(self):
            return self.n + BONUS

    @dataclass(slots=True)
    class Card:
        suit: str

    class Colour(enum.Enum):
        RED = 1

    class Mine(BaseEnv):
        uses_global_rng = False
        def __init__(self, config=None):
            self.config = config
        def reset(self, seed=None, mode=None):
            return "s"
        def step(self, action):
            return "s", 1.0, False, {"item": Item(1), "card": Card("hearts"), "colour": Colour.RED, "deep": [Item(2)]}
        def render(self, mode=None):
            return "s"

    def what_is_mine():
        functions = [each for kind in (Item, Card, Colour, Mine) for each in vars(kind).values()]
        return [id(each) for each in (Item, Card, Colour, Mine, Item.cache, Colour.RED, *functions)]

    register_env("mine", Mine)
    before = what_is_mine()
    with EnvStateManager(config({"M": {"env_type": "mine"}}, [("M", 2)], use_multiprocessing=True)) as manager:
        rollouts = play(manager, 2)
        assert manager.lane_stats()[0].envs == 0, manager.lane_stats()
        os.kill(manager.lane_stats()[1].pid, signal.SIGKILL)
        manager.step(inputs(range(2), 2))
        assert manager.lane_stats()[0].envs == 0
    info = rollouts[0]["history"][0]["info"]
    BONUS = 100.0
    assert type(info["item"]) is Item and info["item"].value() == 101.0 and info["deep"][0].value() == 102.0
    assert type(info["card"]) is Card and info["card"] == Card("hearts")
    assert info["colour"] is Colour.RED
    assert what_is_mine() == before
    assert Item.value.__globals__ is globals()
    print("untouched")
"""


@pytest.mark.usefixtures("backend")
def test_classes_of_the_main_script_come_back_as_they_are_and_none_is_touched(tmp_path):
    assert scripts.run(scripts.write(tmp_path, MAIN)) == "untouched\n"


# What an environment gives is as of that turn


class Growing:
    """A reward that goes on changing."""

    value = 0.0

    def __radd__(self, other):
        return self

    def __float__(self):
        return self.value


class Telling(Walk):
    """Tells of what it goes on writing into."""

    def reset(self, seed=None, mode=None):
        self.player = np.zeros(1, dtype=[("hp", "f8")])
        self.board = np.zeros(2)
        self.seen: list[list[int]] = []
        self.earned = Growing()
        return super().reset(seed, mode)

    def step(self, action):
        super().step(action)
        self.player["hp"][0] += 1
        self.board += 1
        self.seen.append([self.steps])
        self.earned.value += 1
        info = {"player": self.player[0], "board": self.board, "first": self.board[0], "seen": self.seen}
        return self.sight(), self.earned, False, info

    def render(self, mode=None):
        return self.sight()


@pytest.mark.parametrize("mode", MODES)
def test_infos_and_rewards_are_as_of_their_turn(mode):
    with manager(Telling, mode) as played:
        played.reset()
        for turn in range(3):
            played.step([{**each, "actions": ["a"]} for each in inputs(range(8), turn)])
        for rollout in played.get_rollout_states():
            turns = rollout["history"][:3]
            assert [float(turn["info"]["player"]["hp"]) for turn in turns] == [1, 2, 3]
            assert [turn["info"]["board"].tolist() for turn in turns] == [[1, 1], [2, 2], [3, 3]]
            assert [float(turn["info"]["first"]) for turn in turns] == [1, 2, 3]
            assert [len(turn["info"]["seen"]) for turn in turns] == [1, 2, 3]
            assert [float(turn["reward"]) for turn in turns] == [1, 2, 3]
