from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen.env.webshop import generator
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.play import play
from ragen.env.webshop.solver import next_action
from ragen.env.webshop.source import BUILTIN_DIR

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def env(cache: str) -> WebShopEnv:
    return WebShopEnv(WebShopEnvConfig(cache_dir=cache))


def shop_alone(env: WebShopEnv, seed: int, mode: str = "train", limit: int = 9) -> tuple[float, dict]:
    """Let the scripted shopper play an episode, one action at a time."""
    state, clicked, page = env.reset(seed, mode), set[str](), ""
    for _ in range(limit):
        if env.observation != page:
            page, clicked = env.observation, set()
        action = next_action(state, clicked)
        clicked.add(action)
        _, reward, done, info = env.step(action)
        if done:
            return reward, info
        state = env.render()
    return 0.0, info


# --- the shipped catalogue


def contents(folder: Path) -> list[Any]:
    return [json.loads(gzip.decompress((folder / name).read_bytes())) for name in generator.FILES]


def test_the_shipped_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    generator.write(tmp_path)
    assert contents(tmp_path) == contents(BUILTIN_DIR)
    assert generator.generate(1)[0] != contents(BUILTIN_DIR)[0]


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


# --- the scripted shopper


@pytest.mark.parametrize("mode", ["train", "val", "test"])
def test_the_shopper_mostly_buys_what_was_asked_for(env: WebShopEnv, mode: str) -> None:
    played = [shop_alone(env, seed, mode) for seed in range(100, 140)]
    assert all(info["success_purchase"] for _, info in played)
    assert sum(reward for reward, _ in played) / len(played) > 0.8
    assert sum(info["success"] for _, info in played) / len(played) > 0.4


# --- in the terminal


def test_a_person_can_shop_by_number_by_text_and_by_action(env: WebShopEnv) -> None:
    out = io.StringIO()
    lines = io.StringIO("canvas backpack\n3\nblue whale\nclick[description]\n2\nbuy now\nnever read\n")
    score = play(env, 5, "val", lines, out)
    assert score is not None
    assert lines.read() == "never read\n"
    assert "Page 1 (Total results: " in out.getvalue()
    assert "(This page has no such action.)" in out.getvalue()
    assert "Your score (min 0.0, max 1.0)" in out.getvalue()
    assert "[SEP]" not in out.getvalue()


def test_the_shop_imports_no_heavy_package() -> None:
    heavy = ("torch", "verl", "hydra", "ray", "transformers", "omegaconf", "bm25s", "tantivy", "spacy", "pandas")
    code = f"import sys, ragen.env.webshop.env; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "[]\n"
