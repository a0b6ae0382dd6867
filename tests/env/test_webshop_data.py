from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import pickle
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ragen.env.webshop import build, cache, source
from ragen.env.webshop.catalogue import Catalogue, open_catalogue
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.goals import NO_LIMIT, split_order, split_place
from ragen.env.webshop.records import iterate_list, parse_prices
from ragen.env.webshop.store import Store, StoreWriter
from ragen.errors import CacheError, ConfigError
from support import golden
from support import webshop_data as data


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAGEN_WEBSHOP_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return data.write_shop(tmp_path / "shop")


def catalogue_in(folder: Path, **settings: object) -> Catalogue:
    config = WebShopEnvConfig(data_dir=str(folder), **settings)  # type: ignore[arg-type]
    return open_catalogue(config.source, config.cache_dir, config.limit_goals)


def built_file(directory: Path) -> Path:
    (path,) = directory.rglob("*.store")
    return path


# --- what is read


def test_products_are_tidied_as_the_reference_shows_them(shop: Path) -> None:
    catalogue = catalogue_in(shop)
    lamp, mug, soap = map(catalogue.product, range(3))
    assert lamp.options == {"color": ["navy | blue", "tangerine"], "size": ["tall", "short"]}
    assert (lamp.query, lamp.price_text, lamp.prices) == ("desk lamps", "$20.0 to $30.0", [20.0, 30.0])
    assert (mug.price_text, mug.bullets, mug.options, mug.instruction) == ("$100.0", ["Holds tea"], {}, None)
    assert (soap.price_text, soap.bullets, catalogue.price(2)) == ("$985.5", [], 985.5)
    assert catalogue.card(1) == ("MUG0000001", "Stone mug", "$100.0")


def test_products_that_the_reference_leaves_out_are_left_out(tmp_path: Path) -> None:
    extra = [{**data.MUG, "asin": asin} for asin in ("nan", "ELEVENCHARS", "MUG0000001", "MUG0000002")]
    catalogue = catalogue_in(data.write_shop(tmp_path / "shop", [*data.PRODUCTS, *extra]))
    assert [catalogue.card(number).asin for number in range(catalogue.product_count)][2:] == [
        "SOAP000001",
        "MUG0000002",
    ]


def test_a_product_without_attributes_is_sold_but_not_asked_for(tmp_path: Path) -> None:
    without = {key: value for key, value in data.ATTRIBUTES.items() if key != "LAMP000001"}
    catalogue = catalogue_in(data.write_shop(tmp_path / "shop", attributes=without))
    assert (catalogue.product_count, catalogue.goal_count) == (3, 1)


@pytest.mark.parametrize(
    ("text", "prices"),
    [
        ("$5.99", [5.99]),
        ("$1,234.00$2,000", [1234.0, 2000.0]),
        ("$1$2$3", [1.0, 2.0]),
        ("", [100.0]),
        (None, [100.0]),
        ("5.99", [100.0]),
        ("$.", [100.0]),
        ("$1.2.3$7", [7.0]),
    ],
)
def test_prices_are_read_from_any_text(text: str | None, prices: list[float]) -> None:
    assert parse_prices(text) == prices


def test_packed_files_are_read_whatever_their_name(tmp_path: Path) -> None:
    plain, packed = data.write_shop(tmp_path / "plain"), data.write_shop(tmp_path / "packed", packed=True)
    for path in list(packed.iterdir())[:1]:
        path.rename(path.with_suffix(""))
    one, other = catalogue_in(plain), catalogue_in(packed)
    assert [vars(one.product(i)) for i in range(3)] == [vars(other.product(i)) for i in range(3)]


def test_a_list_is_parsed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen.env.webshop.records._CHUNK", 7)
    items = [{"text": 'é]"},{ \\ 漢' * 3, "number": n} for n in range(5)]
    path = tmp_path / "list.json"
    path.write_text(json.dumps(items, indent=2, ensure_ascii=False), "utf-8")
    read = []
    assert list(iterate_list(path, read.append)) == items
    assert sum(read) == path.stat().st_size


@pytest.mark.parametrize("text", ['[{"a": 1}', '[{"a": 1} {"b"', "{}", "", "[1, 2"])
def test_a_list_that_is_cut_off_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        list(iterate_list(path))


def test_num_products_counts_records_of_the_file(shop: Path) -> None:
    assert catalogue_in(shop, num_products=2).product_count == 2


# --- goals


def test_a_goal_asks_for_one_combination_of_options(shop: Path) -> None:
    catalogue = catalogue_in(shop)
    goals = [catalogue.goal(index) for index in range(catalogue.goal_count)]
    lamps = [goal for goal in goals if goal.asin == "LAMP000001"]
    assert {goal.options for goal in lamps} == {
        (("color", color), ("size", size)) for color in ("navy | blue", "tangerine") for size in ("tall", "short")
    }
    (soap,) = (goal for goal in goals if goal.asin == "SOAP000001")
    assert soap.instruction == "Find me hand made soaps with scent: lavender"
    assert soap.price_upper == NO_LIMIT, "only 990 is above 985.50, and one limit is no choice"


def test_limits_lie_above_the_price_and_stand_in_the_instruction(shop: Path) -> None:
    catalogue = catalogue_in(shop)
    lamps = [goal for goal in map(catalogue.goal, range(catalogue.goal_count)) if goal.asin == "LAMP000001"]
    price = catalogue.price(0)
    assert 20 <= price <= 30
    assert len({goal.price_upper for goal in lamps}) == 1
    assert price < lamps[0].price_upper <= price + 40
    assert lamps[0].instruction.endswith(f", and price lower than {lamps[0].price_upper:.2f} dollars")


def test_the_price_seed_decides_prices_and_limits_and_nothing_else(shop: Path) -> None:
    one, again, other = (catalogue_in(shop, price_seed=seed) for seed in (1, 1, 2))
    assert one.price(0) == again.price(0) != other.price(0)
    assert [one.goal(i).options for i in range(5)] == [other.goal(i).options for i in range(5)]


def test_building_leaves_the_global_generator_alone(shop: Path) -> None:
    random.seed(5)
    before = random.getstate()
    catalogue_in(shop)
    assert random.getstate() == before


def test_human_goals_are_the_instructions_that_name_attributes(shop: Path) -> None:
    catalogue = catalogue_in(shop, human_goals=True)
    assert catalogue.goal_count == 1
    goal = catalogue.goal(0)
    assert goal.options == ("stone",)
    assert goal.instruction.startswith("i want a mug that is dishwasher safe, and price lower than 1")


def test_limit_goals_keeps_the_first(shop: Path) -> None:
    every, few = catalogue_in(shop), catalogue_in(shop, limit_goals=2)
    assert (every.goal_count, few.goal_count) == (5, 2)
    assert [few.goal(i) for i in range(2)] == [every.goal(i) for i in range(2)]
    assert {few.goal_index(seed, "train") for seed in range(9)} == {0, 1}


@pytest.mark.parametrize("name", ["webshop_synth", "webshop_small1000"])
def test_goals_and_prices_are_those_of_the_reference(name: str) -> None:
    catalogue = catalogue_in(golden.golden_file("inputs", name))
    products = 0
    for record in golden.records("up25", name, "goals.jsonl.gz"):
        if record["kind"] == "goal":
            goal = catalogue.goal(record["i"])
            ours = (goal.asin, goal.instruction, list(goal.attributes), goal.price_upper, dict(goal.options))
            keys = ("asin", "instruction_text", "attributes", "price_upper", "goal_options")
            assert ours == tuple(record[key] for key in keys)
        elif record["kind"] == "product":
            product = catalogue.product(products)
            shown = (product.asin, product.prices, product.price_text, product.options, product.query)
            assert shown == tuple(record[key] for key in ("asin", "pricing", "Price", "options", "query"))
            assert catalogue.price(products) == record["price"]
            products += 1
        else:
            assert record["n_goals"] == catalogue.goal_count
    assert products == catalogue.product_count


def test_with_many_goals_the_split_is_the_reference_one() -> None:
    parts = {mode: {split_place(2202, seed, mode) for seed in range(5000)} for mode in ("test", "val", "train")}
    assert parts == {"test": set(range(500)), "val": set(range(500, 1500)), "train": set(range(1500, 2202))}
    assert split_place(2202, 703, None) == 1501


@pytest.mark.parametrize("count", [10, 37, 1500])
def test_with_few_goals_every_mode_still_has_its_own(count: int) -> None:
    parts = [{split_place(count, seed, mode) for seed in range(4000)} for mode in ("test", "val", "train")]
    assert all(parts)
    assert set.union(*parts) == set(range(count))
    assert sum(map(len, parts)) == count


def test_with_a_handful_of_goals_every_mode_takes_all() -> None:
    for mode in ("test", "val", "train", None):
        assert {split_place(3, seed, mode) for seed in range(9)} == {0, 1, 2}


def test_the_split_deals_out_every_goal_once() -> None:
    assert sorted(split_order(100).tolist()) == list(range(100))


# --- the built file


def test_a_store_gives_back_what_was_written() -> None:
    stream = io.BytesIO()
    writer = StoreWriter(stream)
    texts = [b"", b"one", "漢".encode() * 400_000, b"last"]
    writer.add_texts("texts", texts)
    writer.add_array("numbers", np.arange(5, dtype="<i4"))
    writer.add_array("none", np.array([], dtype="<f8"))
    writer.finish({"answer": 42})
    store = Store(stream.getvalue())
    assert [store.text("texts", index) for index in range(4)] == texts
    assert store.array("numbers").tolist() == [0, 1, 2, 3, 4]
    assert store.array("none").tolist() == []
    assert store.meta == {"answer": 42}
    with pytest.raises(ValueError, match="read-only"):
        store.array("numbers")[0] = 7


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "grow", "zero the end"])
def test_a_damaged_file_is_found_out_and_built_again(shop: Path, own_cache: Path, damage: str) -> None:
    before = vars(catalogue_in(shop).product(0))
    path = built_file(own_cache)
    whole = path.read_bytes()
    damaged = {
        "flip": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
        "cut": whole[:-100],
        "empty": b"",
        "grow": whole + b"x",
        "zero the end": whole[:-24] + bytes(24),
    }[damage]
    path.unlink()  # the catalogue above may still have the old file mapped
    path.write_bytes(damaged)
    with pytest.raises(CacheError):
        Store.open(path)
    assert vars(catalogue_in(shop, limit_goals=4).product(0)) == before
    assert path.read_bytes() == whole


def test_a_built_file_is_used_and_not_built_again(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = catalogue_in(shop).goal(0)
    monkeypatch.setattr(cache, "build_store", lambda *_: pytest.fail("built again"))
    assert catalogue_in(shop, limit_goals=3).goal(0) == expected


def test_changed_data_are_built_anew(shop: Path) -> None:
    assert catalogue_in(shop).product_count == 3
    data.write_shop(shop, [*data.PRODUCTS, {**data.MUG, "asin": "MUG0000009"}])
    assert catalogue_in(shop, limit_goals=5).product_count == 4


def test_what_a_killed_builder_left_is_cleared_away(shop: Path, own_cache: Path) -> None:
    catalogue_in(shop)
    path = built_file(own_cache)
    leftover = path.with_name(f"{path.stem}.abc.part")
    leftover.write_bytes(b"half")
    path.unlink()
    catalogue_in(shop, limit_goals=4)
    assert path.exists()
    assert not leftover.exists()


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    shop = data.write_shop(tmp_path / "shop", [*data.PRODUCTS, {"name": "no asin"}])
    with pytest.raises(ConfigError, match="product 3: KeyError: 'asin'"):
        catalogue_in(shop)
    assert [path.suffix for path in (own_cache / "webshop").iterdir()] == [".lock"]


_BUILD = """
import sys
from ragen.env.webshop import cache
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
build = cache.build_store
cache.build_store = lambda *arguments: (print("built"), build(*arguments))[1]
print(WebShopEnv(WebShopEnvConfig(data_dir=sys.argv[1])).catalogue.product_count)
"""


def test_of_processes_that_start_at_once_one_builds(shop: Path, own_cache: Path) -> None:
    (own_cache / "webshop").mkdir(parents=True)
    command = [sys.executable, "-c", _BUILD, str(shop)]
    lock = (own_cache / "webshop" / f"{WebShopEnvConfig(data_dir=str(shop)).source.key()}.lock").open("a+")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that all three are waiting
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].split() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sorted(said) == [["3"], ["3"], ["built", "3"]]


def test_without_a_place_to_write_the_catalogue_is_kept_in_memory(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.delenv("RAGEN_CACHE")
    monkeypatch.setattr(cache, "_directories", lambda asked: [in_the_way / "webshop"])
    with pytest.warns(RuntimeWarning, match="cache_dir"):
        assert catalogue_in(shop).search("lamp") == (0,)


def test_the_directory_for_temporary_files_stands_in_for_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAGEN_CACHE")
    home, temporary = cache._directories(None)
    assert home == Path("~/.cache/ragen/webshop").expanduser()
    assert str(os.getuid()) in temporary.parent.name


def test_a_directory_that_cannot_be_written_to_is_refused_by_name(shop: Path, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(ConfigError, match=r"cache_dir='.*file', expected a directory"):
        WebShopEnvConfig(data_dir=str(shop), cache_dir=str(in_the_way))


def test_a_directory_that_went_bad_is_an_error_and_not_a_silent_second_copy(shop: Path, tmp_path: Path) -> None:
    config = WebShopEnvConfig(data_dir=str(shop), cache_dir=str(tmp_path / "later"))
    (tmp_path / "later").write_text("")
    with pytest.raises(CacheError, match="later"):
        WebShopEnv(config).reset(1)


# --- one catalogue per configuration


def test_environments_of_one_configuration_share_a_catalogue_until_the_last_is_gone(shop: Path) -> None:
    one, two = (WebShopEnv(WebShopEnvConfig(data_dir=str(shop))) for _ in range(2))
    assert one.catalogue is two.catalogue
    assert WebShopEnv(WebShopEnvConfig(data_dir=str(shop), price_seed=2)).catalogue is not one.catalogue
    assert WebShopEnv(WebShopEnvConfig()).catalogue.product_count > 500


def test_an_environment_travels_without_its_catalogue(shop: Path) -> None:
    env = WebShopEnv(WebShopEnvConfig(data_dir=str(shop)))
    env.reset(1)
    copy = pickle.loads(pickle.dumps(env))
    assert "_catalogue" not in vars(copy)
    assert copy.step("search[lamp]") == env.step("search[lamp]")


# --- which files


def test_file_path_finds_the_other_files_beside_it(shop: Path) -> None:
    config = WebShopEnvConfig(file_path=str(shop / "items_shuffle.json"), human_goals=True)
    assert config.source.attributes == shop / "items_ins_v2.json"
    assert config.source.instructions == shop / "items_human_ins.json"


def test_human_instructions_may_lie_in_the_folder_above(shop: Path) -> None:
    small = data.write_shop(shop / "small")
    (small / "items_human_ins.json").unlink()
    config = WebShopEnvConfig(data_dir=str(small), human_goals=True)
    assert config.source.instructions == shop / "items_human_ins.json"


@pytest.mark.parametrize(("dataset", "name"), [("small", "items_shuffle_1000.json"), ("full", "items_shuffle.json.gz")])
def test_a_data_set_is_found_in_its_folder_or_one_named_after_it(tmp_path: Path, dataset: str, name: str) -> None:
    for folder in (tmp_path / "a", tmp_path / "b" / dataset):
        data.write_shop(folder, packed=name.endswith(".gz"))
        for path in list(folder.glob("items_*")):
            path.rename(str(path).replace("items_shuffle.json", name.removesuffix(".gz")).replace("v2.json", "v2.json"))
        attributes = folder / name.replace("items_shuffle", "items_ins_v2")
        next(folder.glob("items_ins_v2*")).rename(attributes)
        root = folder.parent if folder.name == dataset else folder
        config = WebShopEnvConfig(dataset=dataset, data_dir=str(root))
        assert (config.source.products.name, config.source.attributes) == (name, attributes)


def test_the_folder_of_a_data_set_may_come_from_the_environment(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGEN_WEBSHOP_DATA", str(shop))
    assert WebShopEnvConfig(dataset="full").source.products.parent == shop
    assert WebShopEnvConfig().source.products.parent == source.BUILTIN_DIR


def bad_configs(tmp_path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    shop = data.write_shop(tmp_path / "bad")
    yield "observation_mode='html', expected 'text'", {"observation_mode": "html"}
    yield "server='x', expected null", {"server": "x"}
    yield "filter_goals=.*, expected null", {"filter_goals": len}
    yield "limit_goals=0, expected", {"limit_goals": 0}
    yield "num_products=-1, expected", {"num_products": -1}
    yield "human_goals='no', expected true or false", {"human_goals": "no"}
    yield "price_seed='x', expected an integer", {"price_seed": "x"}
    yield "compat='up24', expected 'up25' or 'up26'", {"compat": "up24"}
    yield "nouns='all', expected 'words' or 'spacy'", {"nouns": "all"}
    yield "dataset='large', expected", {"dataset": "large"}
    yield "file_path='/nowhere', expected an existing file", {"file_path": "/nowhere"}
    yield "file_path=7, expected a text", {"file_path": 7}
    yield "data_dir=None, expected a folder with items_shuffle_1000.json", {"dataset": "small"}
    yield "data_dir=.* expected a folder with items_shuffle_1000.json", {"dataset": "small", "data_dir": str(shop)}
    yield "data_dir='.*', expected .* it has 0 of them", {"data_dir": str(tmp_path)}
    yield "attr_path='/nowhere', expected an existing file", {"data_dir": str(shop), "attr_path": "/nowhere"}


def test_a_bad_configuration_is_refused_by_key_and_value(tmp_path: Path) -> None:
    for message, settings in bad_configs(tmp_path):
        with pytest.raises(ConfigError, match=f"webshop: env_config key {message}"):
            WebShopEnvConfig(**settings)  # type: ignore[arg-type]


def test_two_catalogues_in_a_folder_are_one_too_many(shop: Path) -> None:
    (shop / "items_shuffle_1000.json").write_text("[]")
    with pytest.raises(ConfigError, match="it has 2 of them, and file_path can say which"):
        WebShopEnvConfig(data_dir=str(shop))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("items_shuffle.json", '{"a": 1}', "data_dir=.* expected a JSON list .*begins with '{"),
        ("items_shuffle.json", '[{"title": "x"}]', "data_dir=.*without asin and name"),
        ("items_shuffle.json", '[{"asin": "x"', "data_dir=.*not valid JSON"),
        ("items_shuffle.json", "\x00", "data_dir=.*begins with"),
        ("items_ins_v2.json", "[]", r"attr_path=.* expected a JSON object .*begins with '\[\]'"),
        ("items_human_ins.json", "", "human_attr_path=.* expected a JSON object .*begins with ''"),
    ],
)
def test_a_file_of_another_format_is_refused_before_anything_is_built(
    shop: Path, file: str, text: str, message: str
) -> None:
    (shop / file).write_text(text)
    with pytest.raises(ConfigError, match=message):
        WebShopEnvConfig(data_dir=str(shop), human_goals=True)


def test_a_damaged_packed_file_is_refused(shop: Path) -> None:
    (shop / "items_shuffle.json").write_bytes(gzip.compress(b"[{}]")[:12])
    with pytest.raises(ConfigError, match="cannot be read"):
        WebShopEnvConfig(data_dir=str(shop))


def test_a_missing_attributes_file_is_named(shop: Path) -> None:
    (shop / "items_ins_v2.json").unlink()
    with pytest.raises(ConfigError, match=r"attr_path=None, expected the path .* no items_ins_v2.json"):
        WebShopEnvConfig(data_dir=str(shop))


def test_a_catalogue_that_nobody_asks_for_anything_from_is_refused(tmp_path: Path) -> None:
    shop = data.write_shop(tmp_path / "shop", attributes={})
    with pytest.raises(ConfigError, match=r"no product of .* has an instruction in .*\(attr_path\)"):
        catalogue_in(shop)


def test_data_that_vanish_after_construction_are_missed(shop: Path) -> None:
    env = WebShopEnv(WebShopEnvConfig(data_dir=str(shop)))
    (shop / "items_shuffle.json").unlink()
    with pytest.raises(ConfigError, match="a data file is missing"):
        env.reset(1)


# --- nouns


def test_spacy_is_refused_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="nouns='spacy', expected 'words', unless spaCy"):
        WebShopEnvConfig(nouns="spacy")


def test_a_tagger_decides_what_the_nouns_of_a_title_are(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, disable: list[str]) -> object:
        assert name == build.NOUN_MODEL
        token = types.SimpleNamespace
        return lambda title: [token(text=word, pos_="NOUN" if "m" in word else "ADJ") for word in title.split()]

    monkeypatch.setitem(sys.modules, "spacy", types.SimpleNamespace(load=load))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    goals = catalogue_in(shop, nouns="spacy")
    nouns = {goal.asin: goal.nouns for goal in map(goals.goal, range(goals.goal_count))}
    assert nouns == {"LAMP000001": ("lamp", "ember"), "SOAP000001": ()}
