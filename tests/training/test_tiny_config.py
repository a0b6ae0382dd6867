"""What can be reached in the games of ``config/tiny.yaml``: computed, not played."""

from itertools import product

import pytest

from ragen.env.frozen_lake.lake import FROZEN, GOAL, generate_lake, neighbours
from support.configurations import composed


@pytest.fixture(scope="module")
def config():
    return composed("tiny")


@pytest.fixture
def game(config):
    return config.custom_envs["TinyLake"]


@pytest.fixture
def lakes(config, game):
    """Those of validation."""
    section = config.es_manager.val
    assert list(section.env_configs.tags) == ["Bandit", "TinyLake"]
    first, count = section.env_configs.n_groups
    seeds = range(config.seed.val + first, config.seed.val + first + count)
    return [generate_lake(game.env_config["size"], game.env_config["p"], seed) for seed in seeds]


@pytest.fixture
def arrives(game):
    moves = neighbours(game.env_config["size"])

    def arrives(lake, plan):
        cell = lake.start
        for direction in plan:
            cell = moves[direction][cell]
            if lake.tiles[cell] != FROZEN:
                break
        return lake.tiles[cell] == GOAL

    return arrives


def test_the_goal_of_every_lake_can_be_reached_in_one_turn_so_the_optimum_is_1(config, game, lakes, arrives):
    assert not game.env_config["is_slippery"]
    assert config.agent_proxy.max_actions_per_turn <= game.max_actions_per_traj
    plans = list(product(range(4), repeat=config.agent_proxy.max_actions_per_turn))
    assert all(any(arrives(lake, plan) for plan in plans) for lake in lakes)


def test_seeds_of_validation_training_and_demonstrations_differ(config):
    val = range(config.seed.val, config.seed.val + config.es_manager.val.env_groups)
    steps = config.trainer.total_training_steps * max(1, config.algorithm.filter_groups.max_num_gen_batches)
    train = range(config.seed.train, config.seed.train + steps * config.es_manager.train.env_groups)
    demonstrated = range(config.warm_up.seed, config.warm_up.seed + config.warm_up.groups)
    assert val.stop <= train.start and train.stop <= demonstrated.start
