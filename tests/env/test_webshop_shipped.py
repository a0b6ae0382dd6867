from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen.env.webshop import __main__ as command
from ragen.env.webshop import generator
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.play import play, read_action
from ragen.env.webshop.reward import count_options
from ragen.env.webshop.solver import best_product, next_action, plan_actions, read_view, search_words
from ragen.env.webshop.source import BUILTIN_DIR
from support import webshop_data as data

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


def test_the_shipped_files_are_small() -> None:
    assert sum(path.stat().st_size for path in BUILTIN_DIR.iterdir()) < 300_000


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


def test_every_option_of_the_catalogue_can_satisfy_a_goal() -> None:
    for kind in generator.read_vocabulary().kinds:
        for name, values in kind.options.items():
            for value in values:
                assert count_options([value], [(name, value)]) == 1, f"{kind.one}: {value} holds another colour's name"


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


def test_people_ask_too(cache: str) -> None:
    env = WebShopEnv(WebShopEnvConfig(cache_dir=cache, human_goals=True))
    assert env.catalogue.goal_count > 200
    rewards = [shop_alone(env, seed)[0] for seed in range(20)]
    assert sum(rewards) / len(rewards) > 0.7


# --- the scripted shopper


@pytest.mark.parametrize("mode", ["train", "val", "test"])
def test_the_shopper_mostly_buys_what_was_asked_for(env: WebShopEnv, mode: str) -> None:
    played = [shop_alone(env, seed, mode) for seed in range(100, 140)]
    assert all(info["success_purchase"] for _, info in played)
    assert sum(reward for reward, _ in played) / len(played) > 0.8
    assert sum(info["success"] for _, info in played) / len(played) > 0.4


def test_the_shopper_does_nothing_that_the_page_does_not_offer(env: WebShopEnv) -> None:
    env.reset(7)
    for action in ("search[green tea]", "", "click[next >]", "click[description]", "noop"):
        env.step(action)
        for planned in plan_actions(env.render()):
            assert planned in env.get_available_actions() or planned.startswith("search[")


def test_the_shopper_goes_back_from_a_dead_end(env: WebShopEnv) -> None:
    env.reset(7)
    env.step("search[zeppelin]")
    assert next_action(env.render()) == "click[back to search]"


def test_a_search_leaves_out_the_price_and_what_says_nothing() -> None:
    told = "i am looking for lipsticks that are vegan with color: plum, and price lower than 40.00 dollars"
    assert search_words(told) == "lipsticks vegan color plum"


def test_the_shopper_passes_over_what_is_too_dear(env: WebShopEnv) -> None:
    env.reset(7)
    env.step("search[floor lamps]")
    state = re.sub(r"lower than [\d.]+ dollars", "lower than 60.00 dollars", env.render())
    view = read_view(state)
    chosen = best_product(view)
    prices = dict(zip(map(str.lower, view.pieces), view.pieces[2:], strict=False))
    assert float(prices[chosen].split(" ")[0][1:]) <= 60
    assert chosen != next(action[6:-1] for action in view.actions if action.startswith("click[r"))


@pytest.mark.parametrize("text", ["", "no shop at all", "Instruction: [SEP] x", "You must choose from these actions:."])
def test_the_shopper_makes_nothing_of_other_texts(text: str) -> None:
    assert plan_actions(text) == []
    assert next_action(text) == ""


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


def test_the_terminal_shows_what_was_chosen_and_lets_one_leave(env: WebShopEnv) -> None:
    env.reset(5, "val")
    env.step("search[canvas backpack]")
    env.step(env.get_available_actions()[2])
    value = env.get_available_actions()[-1][6:-1]
    out = io.StringIO()
    lines = io.StringIO(f"canvas backpack\n3\n{value}\nquit\n")
    assert play(env, 5, "val", lines, out) is None
    assert f": {value}\n" in out.getvalue().partition("Chosen: ")[2]
    assert play(env, 5, "val", io.StringIO(""), out) is None


def test_a_line_means_an_action() -> None:
    assert read_action("lamp\n", ["search[<content>]"]) == "search[lamp]"
    assert read_action("2\n", ["click[a]", "click[b]"]) == "click[b]"
    assert read_action("3\n", ["click[a]", "click[b]"]) == "click[3]"
    assert read_action("search[x]\n", ["click[a]"]) == "search[x]"


def test_the_index_is_built_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = data.write_shop(tmp_path / "shop")
    assert command.main(["build", str(shop), "--cache-dir", str(tmp_path / "cache"), "--human-goals"]) == 0
    assert "3 products, 1 goals" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").rglob("*.store"))) == 1


def test_bad_arguments_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["build", str(tmp_path)]) == 2
    assert command.main(["play", "compat=up24"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith("error: ") for line in said)


def test_the_command_plays(cache: str) -> None:
    arguments = [sys.executable, "-m", "ragen.env.webshop", "play", "--seed", "3", f"cache_dir={cache}"]
    done = subprocess.run(arguments, input="desk lamp\n3\n6\n", capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0
    assert "Your score: " in done.stdout.splitlines()[-1]


def test_the_shop_imports_no_heavy_package() -> None:
    heavy = ("torch", "verl", "hydra", "ray", "transformers", "omegaconf", "bm25s", "tantivy", "spacy", "pandas")
    code = f"import sys, ragen.env.webshop.env; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "[]\n"
