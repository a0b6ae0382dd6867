from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv

pytestmark = pytest.mark.usefixtures("module_cache")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def env() -> WebShopEnv:
    return WebShopEnv(WebShopEnvConfig())


def test_the_catalogue_has_hundreds_of_products_and_goals_for_every_split(env: WebShopEnv) -> None:
    catalogue = env.catalogue
    assert catalogue.product_count >= 500
    assert catalogue.goal_count > 3000
    products = [catalogue.product(number) for number in range(catalogue.product_count)]
    assert len({product.asin for product in products}) == catalogue.product_count
    assert len({product.query for product in products}) >= 40
    assert sum(bool(product.reviews) for product in products) > 300
    assert all(product.description and product.bullets and product.attributes for product in products)
    assert len({product.title for product in products}) > 0.9 * len(products)


def test_a_goal_is_perfectly_met_by_its_own_product(env: WebShopEnv) -> None:
    for seed in range(30):
        env.reset(seed, "val")
        goal = env.goal
        assert goal is not None
        number = next(n for n in range(env.catalogue.product_count) if env.catalogue.card(n).asin == goal.asin)
        env.step(f"search[{env.catalogue.product(number).title}]")
        env.step(f"click[{goal.asin}]")
        for _, value in goal.options:
            env.step(f"click[{value}]")
        assert env.step("click[buy now]")[1] == 1.0


def test_the_shop_imports_no_heavy_package() -> None:
    heavy = ("torch", "verl", "hydra", "ray", "transformers", "omegaconf", "bm25s", "tantivy", "spacy", "pandas")
    code = f"import sys, ragen.env.webshop.env; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "[]\n"
