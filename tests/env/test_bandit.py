from __future__ import annotations

import pytest

from ragen.env.bandit.config import NAME_PAIRS, BanditEnvConfig
from ragen.env.bandit.env import BanditEnv


@pytest.fixture
def env() -> BanditEnv:
    return BanditEnv()


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_draws_all_of_its_pairs_and_no_others(split: str) -> None:
    env = BanditEnv(BanditEnvConfig(split=split))
    seen = set()
    for seed in range(200):
        env.reset(seed)
        seen.add(frozenset(env.config.action_lookup.values()))
    assert seen == {frozenset(pair) for pair in NAME_PAIRS[split]}


def test_the_configured_payouts_and_numbers_are_used() -> None:
    config = BanditEnvConfig("low", "high", 5, lo_arm_score=2.0, hi_arm_hiscore=7.0, hi_arm_hiscore_prob=1.0)
    env = BanditEnv(config)
    env.reset(0)
    rewards = {name: env.step(key)[1] for key, name in env.config.action_lookup.items()}
    assert sorted(env.config.action_lookup) == [5, 6]
    assert rewards == {"low": 2.0, "high": 7.0}


def test_the_risky_arm_is_the_success_whatever_it_pays(env: BanditEnv) -> None:
    env.reset(0)
    key = next(key for key, name in env.config.action_lookup.items() if name == "dragon")
    results = [env.step(key) for _ in range(40)]
    assert {reward for _, reward, _, _ in results} == {0.0, 1.0}
    assert all(info["success"] for _, _, _, info in results)
