"""Seeds of ``config/tiny.yaml``."""

import pytest

from support.configurations import composed


@pytest.fixture(scope="module")
def config():
    return composed("tiny")


def test_seeds_of_validation_training_and_demonstrations_differ(config):
    val = range(config.seed.val, config.seed.val + config.es_manager.val.env_groups)
    steps = config.trainer.total_training_steps * max(1, config.algorithm.filter_groups.max_num_gen_batches)
    train = range(config.seed.train, config.seed.train + steps * config.es_manager.train.env_groups)
    demonstrated = range(config.warm_up.seed, config.warm_up.seed + config.warm_up.groups)
    assert val.stop <= train.start and train.stop <= demonstrated.start
