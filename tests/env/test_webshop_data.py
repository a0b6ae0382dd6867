from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ragen.env.webshop.catalogue import Catalogue, open_catalogue
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.goals import split_place
from support import golden

PRODUCT = {
    **{"name": "Lavender soap", "full_description": "", "small_description": [], "pricing": "$985.50"},
    **{"category": "beauty", "product_category": "Soaps", "query": "soaps", "customization_options": {}},
}
WISHED = {"attributes": ["mild"], "instruction": "Find me mild soaps", "instruction_attributes": ["mild"]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAGEN_WEBSHOP_DATA", raising=False)
    return tmp_path / "cache"


def write_shop(folder: Path, products: str = "items_shuffle.json", count: int = 1) -> Path:
    """Write the data files of a shop, that of its products under this name; their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**PRODUCT, "asin": f"SOAP{number}"} for number in range(count)]
    attributes = products.replace("shuffle", "ins_v2")
    for name, content in ((products, rows), (attributes, {row["asin"]: WISHED for row in rows})):
        data = json.dumps(content).encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def catalogue_in(folder: Path, **settings: object) -> Catalogue:
    config = WebShopEnvConfig(data_dir=str(folder), **settings)  # type: ignore[arg-type]
    return open_catalogue(config.source, config.limit_goals)


# --- what is read


# --- goals


@pytest.mark.parametrize("name", ["webshop_synth", "webshop_small1000"])
def test_goals_and_prices_are_those_of_the_reference(name: str) -> None:
    catalogue = catalogue_in(golden.golden_file("inputs", name))
    products = 0
    for record in golden.records("up25", name, "goals.jsonl.gz"):
        if record["kind"] == "goal":
            goal = catalogue.goal(record["i"])
            ours = (goal.product.asin, goal.instruction, list(goal.attributes), goal.price_upper, dict(goal.options))
            keys = ("asin", "instruction_text", "attributes", "price_upper", "goal_options")
            assert ours == tuple(record[key] for key in keys)
        elif record["kind"] == "product":
            product = catalogue.product(products)
            shown = (product.asin, product.prices, product.price_text, product.options, product.query)
            assert shown == tuple(record[key] for key in ("asin", "pricing", "Price", "options", "query"))
            assert product.price == record["price"]
            products += 1
        else:
            assert record["n_goals"] == catalogue.goal_count
    assert products == catalogue.product_count


def test_with_many_goals_the_split_is_the_reference_one() -> None:
    parts = {mode: {split_place(2202, seed, mode) for seed in range(5000)} for mode in ("test", "val", "train")}
    assert parts == {"test": set(range(500)), "val": set(range(500, 1500)), "train": set(range(1500, 2202))}
    assert split_place(2202, 703, None) == 1501


# --- the built file


def test_changed_data_are_built_anew(tmp_path: Path) -> None:
    for count in (3, 4):
        assert catalogue_in(write_shop(tmp_path, count=count)).product_count == count


# --- which files


@pytest.mark.parametrize(("dataset", "name"), [("small", "items_shuffle_1000.json"), ("full", "items_shuffle.json.gz")])
def test_a_data_set_is_found_in_its_folder_or_one_named_after_it(tmp_path: Path, dataset: str, name: str) -> None:
    for folder in (tmp_path / "a", tmp_path / "b" / dataset):
        write_shop(folder, name)
        root = folder.parent if folder.name == dataset else folder
        config = WebShopEnvConfig(dataset=dataset, data_dir=str(root))
        assert (config.source.products.name, config.source.attributes) == (
            name,
            folder / name.replace("items_shuffle", "items_ins_v2"),
        )
