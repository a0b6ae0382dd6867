"""The games and seeds of ``config/tiny.yaml``."""

import pytest

from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv
from ragen.env.frozen_lake.solver import solve
from support.configurations import composed


@pytest.fixture(scope="module")
def config():
    return composed("tiny")


def test_no_way_to_a_goal_is_longer_than_a_turn(config):
    first, count = config.es_manager.val.env_configs.n_groups
    env = FrozenLakeEnv(FrozenLakeEnvConfig(**config.custom_envs["TinyLake"].env_config))
    ways = [solve(env.reset(config.seed.val + first + number)) for number in range(count)]
    assert all(0 < len(way) <= config.agent_proxy.max_actions_per_turn for way in ways)
