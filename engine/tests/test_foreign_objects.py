"""What environments return may run code of its own: as it is unpickled, asked for its truth, or made a number."""

import os
import re
import sys
import time

import pytest

from support.episodes import EnvStateManager, config, errors, freeze, play, sequential
from support.faulty_envs import Walk

TURNS = 3
each_kind = pytest.mark.usefixtures("backend")


class _Trap:
    """Springs as it is unpickled."""

    def __init__(self, spring, *arguments):
        self.spring = spring, arguments

    def __reduce__(self):
        return self.spring

    def __deepcopy__(self, memo):
        return self


class Telling(Walk):
    """Puts something into the info of its second turn."""

    def __init__(self, config=None):
        super().__init__(config)
        self.turns = 0

    def reset(self, seed=None, mode=None):
        self.turns = 0
        return super().reset(seed, mode)

    def render(self, mode=None):
        self.turns += 1
        return super().render()

    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward, done, {**info, **(self.extra() if self.turns == 2 else {})}


class Exits(Telling):
    def extra(self):
        return {"handle": _Trap(os._exit, 3)}


class Leaves(Telling):
    def extra(self):
        return {"handle": _Trap(sys.exit, 3)}


class Sleeps(Telling):
    def extra(self):
        return {"handle": [{"deep": _Trap(time.sleep, 10**6)}]}


class Collects(Walk):
    """Writes into its configuration."""

    def reset(self, seed=None, mode=None):
        self.config["items"].append(seed)
        return super().reset(seed, mode)

    def sight(self):
        return f"{super().sight()} {self.config['items']}"


def mixed(kind, **settings):
    tags = {"Good": {"env_type": "support.faulty_envs:Walk"}, "Faulty": {"env_type": f"{__name__}:{kind.__name__}"}}
    return config(tags, [("Good", 2), ("Faulty", 1), ("Good", 2)], **{"use_multiprocessing": True, **settings})


@pytest.fixture(scope="module")
def honest():
    return sequential(mixed(Walk), TURNS)[0]


def others(rollouts):
    return [freeze(rollout) for rollout in rollouts if rollout["env_id"] != 2]


@each_kind
@pytest.mark.parametrize(
    ("backend", "kind", "says"),
    [
        ("process", Exits, "exited with code 3"),
        ("process", Sleeps, r"timed out after 0\.5 s"),
        ("process", Leaves, None),
        ("executor", Exits, "exited with code 3"),
    ],
    indirect=["backend"],
)
def test_what_springs_as_it_is_unpickled_harms_its_own_environment_at_most(kind, says, honest):
    with EnvStateManager(mixed(kind, step_timeout=0.5)) as manager:
        rollouts = play(manager, TURNS)
    assert others(rollouts) == others(honest)
    told = errors(rollouts[2])
    assert told[0] is None
    assert re.search(says, told[1]) if says else told == [None] * TURNS


def test_a_configuration_that_environments_write_into_is_each_one_s_own():
    items = []
    tags = {"Tag": {"env_type": f"{__name__}:Collects", "env_config": {"items": items}}}
    settings = config(tags, [("Tag", 3)], group_size=2, use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        rollouts = freeze(play(manager, TURNS))
    assert rollouts == sequential(settings, TURNS)[0]
    assert items == []
