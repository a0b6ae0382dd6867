from __future__ import annotations

import pytest

from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv

pytestmark = pytest.mark.usefixtures("module_cache")


@pytest.fixture
def env() -> WebShopEnv:
    return WebShopEnv(WebShopEnvConfig())


def test_a_goal_is_perfectly_met_by_its_own_product(env: WebShopEnv) -> None:
    for seed in range(30):
        env.reset(seed, "val")
        goal = env.goal
        assert goal is not None
        number = next(
            n for n in range(env.catalogue.product_count) if env.catalogue.product(n).asin == goal.product.asin
        )
        env.step(f"search[{env.catalogue.product(number).title}]")
        env.step(f"click[{goal.product.asin}]")
        for _, value in goal.options:
            env.step(f"click[{value}]")
        assert env.step("click[buy now]")[1] == 1.0
