"""WebShop: equal to the reference where its goldens are there, and the shops that are found and built."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.search import analyze
from support import golden

pytestmark = pytest.mark.usefixtures("module_cache")

CASES = [("up25", "webshop_synth"), ("up26", "webshop_synth"), ("up25", "webshop_small1000")]
PRODUCT = {
    **{"name": "Lavender soap", "full_description": "", "small_description": [], "pricing": "$985.50"},
    **{"category": "beauty", "product_category": "Soaps", "query": "soaps", "customization_options": {}},
}
WISHED = {"attributes": ["mild"], "instruction": "Find me mild soaps", "instruction_attributes": ["mild"]}


def shop(folder: Path | str, **more: Any) -> WebShopEnv:
    return WebShopEnv(WebShopEnvConfig(data_dir=str(folder), **more))


def golden_shop(version: str, name: str) -> WebShopEnv:
    return shop(golden.golden_file("inputs", name), compat=version)


@pytest.mark.parametrize(("version", "name"), CASES)
def test_every_reset_and_step_is_that_of_the_reference(version: str, name: str) -> None:
    env = golden_shop(version, name)
    for file in ("resets.jsonl.gz", "episodes.jsonl.gz"):
        for record in golden.records(version, name, file):
            where = (name, record.get("ep"), record.get("t"), record.get("action"))
            if record["kind"] == "reset":
                assert env.reset(record["seed"], record["mode"]) == env.render() == record["state"], where
                if "goal_index" in record:
                    assert (env.goal_index, env.get_available_actions()) == (record["goal_index"], record["available"])
            elif record["kind"] == "step":
                text, reward, done, info = env.step(record["action"])
                assert (text, env.render()) == (record["obs"], record["render"]), where
                assert env.get_available_actions() == record["available"], where
                golden.assert_same_number(reward, record["reward"], where)
                assert done is record["done"], where
                assert json.dumps(info) == json.dumps(record["info"]), where


@pytest.mark.parametrize("name", ["webshop_synth", "webshop_small1000"])
def test_every_ranking_is_that_of_the_reference_engine(name: str) -> None:
    catalogue = golden_shop("up25", name).catalogue
    queries = [record for record in golden.records("up25", name, "search.jsonl.gz") if record["kind"] == "q"]
    assert len(queries) > 250
    for record in queries:
        found = catalogue.search(record["q"])
        assert [catalogue.product(n).asin for n, _ in found] == [asin for asin, _ in record["hits"]], record["q"]
        for (_, score), (_, theirs) in zip(found, record["hits"], strict=True):
            assert score == pytest.approx(theirs, abs=1.1e-4)  # theirs are rounded to 4 places, equal ones pulled apart


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Running, runs; RUNNER'S the and this", "run run runner"),
        ('t-shirt 28" x 28"', "t shirt 28 x 28"),
        ("6.5 wide 1,000 3/4 a.b. o'clock", "6.5 wide 1,000 3 4 a.b o'clock"),
        ("snake_case __ _x_ 7_", "snake_cas _x_ 7_"),
        ("漢字 ひらがな 100", "漢 字 ひ ら が な 100"),
        ("★❤❤ nice☞", "★ ❤ ❤ nice ☞"),
        ("q：i ½ x² ｶﾞ ﾟ", "q：i x ｶﾞ"),
        ("possibly generously analogically", "possibl gener analog"),
        ("as is of", ""),
    ],
)
def test_text_becomes_the_terms_of_an_english_lucene_index(text: str, terms: str) -> None:
    assert analyze(text) == terms.split()


def test_a_goal_is_perfectly_met_by_its_own_product() -> None:
    env = WebShopEnv()
    for seed in range(30):
        env.reset(seed, "val")
        goal = env.goal
        assert goal is not None
        env.step(f"search[{goal.product.title}]")
        for clicked in (goal.product.asin, *(value for _, value in goal.options)):
            env.step(f"click[{clicked}]")
        assert env.step("click[buy now]")[1] == 1.0


# Files


def write_shop(folder: Path, products: str = "items_shuffle.json", count: int = 1) -> Path:
    """Write the data files of a shop, that of its products under this name; their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**PRODUCT, "asin": f"SOAP{number}"} for number in range(count)]
    attributes = products.replace("shuffle", "ins_v2")
    for name, content in ((products, rows), (attributes, {row["asin"]: WISHED for row in rows})):
        data = json.dumps(content).encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def test_changed_data_are_built_anew(tmp_path: Path) -> None:
    for count in (3, 4):
        assert shop(write_shop(tmp_path, count=count)).catalogue.goal_count == count


@pytest.mark.parametrize(("dataset", "name"), [("small", "items_shuffle_1000.json"), ("full", "items_shuffle.json.gz")])
def test_a_data_set_is_found_in_its_folder_or_one_named_after_it(tmp_path: Path, dataset: str, name: str) -> None:
    for folder, root in ((tmp_path / "a", tmp_path / "a"), (tmp_path / "b" / dataset, tmp_path / "b")):
        write_shop(folder, name)
        source = shop(root, dataset=dataset).config.source
        assert (source.products, source.attributes.parent) == (folder / name, folder)
