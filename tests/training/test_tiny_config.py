"""What can be reached in the games of ``config/tiny.yaml``: computed, not played."""

from itertools import product

from ragen.env.frozen_lake.lake import FROZEN, GOAL, generate_lake, neighbours
from ragen.llm_agent.config.loading import load_config

CONFIG = load_config("tiny")
LAKE = CONFIG.custom_envs.TinyLake
MOVES = neighbours(LAKE.env_config.size)
ACTIONS = LAKE.max_actions_per_traj


def validation_lakes():
    section = CONFIG.es_manager.val
    assert list(section.env_configs.tags) == ["Bandit", "TinyLake"]
    first, count = section.env_configs.n_groups
    seeds = range(CONFIG.seed.val + first, CONFIG.seed.val + first + count)
    return [generate_lake(LAKE.env_config.size, LAKE.env_config.p, seed) for seed in seeds]


def arrives(lake, plan):
    cell = lake.start
    for direction in plan:
        cell = MOVES[direction][cell]
        if lake.tiles[cell] != FROZEN:
            break
    return lake.tiles[cell] == GOAL


def test_the_goal_of_every_lake_can_be_reached_in_one_turn_so_the_optimum_is_1():
    assert not LAKE.env_config.is_slippery
    assert CONFIG.agent_proxy.max_actions_per_turn <= ACTIONS
    plans = list(product(range(4), repeat=CONFIG.agent_proxy.max_actions_per_turn))
    assert all(any(arrives(lake, plan) for plan in plans) for lake in validation_lakes())


def test_no_walk_that_ignores_what_it_sees_reaches_the_goal_of_two_lakes_in_three():
    lakes = validation_lakes()
    best = max(sum(arrives(lake, plan) for lake in lakes) / len(lakes) for plan in product(range(4), repeat=ACTIONS))
    assert 0.5 < best < 2 / 3


def test_seeds_of_validation_training_and_demonstrations_differ():
    val = range(CONFIG.seed.val, CONFIG.seed.val + CONFIG.es_manager.val.env_groups)
    steps = CONFIG.trainer.total_training_steps * max(1, CONFIG.algorithm.filter_groups.max_num_gen_batches)
    train = range(CONFIG.seed.train, CONFIG.seed.train + steps * CONFIG.es_manager.train.env_groups)
    demonstrated = range(CONFIG.warm_up.seed, CONFIG.warm_up.seed + CONFIG.warm_up.groups)
    assert val.stop <= train.start and train.stop <= demonstrated.start
