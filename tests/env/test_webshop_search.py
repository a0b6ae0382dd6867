from __future__ import annotations

from pathlib import Path

import pytest

from ragen.env.database import Database, new_database
from ragen.env.webshop.analyzer import analyze
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.search import MAX_QUERY, Index, IndexBuilder
from support import golden

pytestmark = pytest.mark.usefixtures("module_cache")


def index_of(folder: Path, *texts: str, names: list[str] | None = None) -> Index:
    builder = IndexBuilder()
    for number, text in enumerate(texts):
        builder.add(names[number] if names else f"{number:04}", text)
    with new_database(folder) as database:
        builder.write(database)
    return Index(Database(folder))


@pytest.mark.parametrize("data", ["webshop_synth", "webshop_small1000"])
def test_every_ranking_is_that_of_the_reference_engine(data: str) -> None:
    folder = str(golden.golden_file("inputs", data))
    catalogue = WebShopEnv(WebShopEnvConfig(data_dir=folder)).catalogue
    queries = [record for record in golden.records("up25", data, "search.jsonl.gz") if record["kind"] == "q"]
    assert len(queries) > 250
    for record in queries:
        found = catalogue.search(record["q"])
        assert [catalogue.card(number).asin for number, _ in found] == [asin for asin, _ in record["hits"]], record["q"]
        for (_, score), (_, theirs) in zip(found, record["hits"], strict=True):
            assert score == pytest.approx(theirs, abs=1.1e-4)  # theirs are rounded to 4 places, equal ones pulled apart


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Running, runs; RUNNER'S", ["run", "run", "runner"]),
        ("the lamp and this desk", ["lamp", "desk"]),
        ('t-shirt 28" x 28"', ["t", "shirt", "28", "x", "28"]),
        ("6.5 wide 1,000 3/4 a.b. o'clock", ["6.5", "wide", "1,000", "3", "4", "a.b", "o'clock"]),
        ("snake_case __ _x_ 7_", ["snake_cas", "_x_", "7_"]),
        ("漢字 ひらがな 100", ["漢", "字", "ひ", "ら", "が", "な", "100"]),
        ("★❤❤ nice☞", ["★", "❤", "❤", "nice", "☞"]),
        ("q：i ½ x² ｶﾞ ﾟ", ["q：i", "x", "ｶﾞ"]),
        ("possibly generously analogically", ["possibl", "gener", "analog"]),
        ("as is of", []),
        ("", []),
    ],
)
def test_text_becomes_the_terms_of_an_english_lucene_index(text: str, terms: list[str]) -> None:
    assert analyze(text) == terms


def test_equal_scores_are_ordered_by_name_and_not_by_place(tmp_path: Path) -> None:
    index = index_of(tmp_path, "lamp one", "lamp two", "lamp six", names=["b", "c", "a"])
    assert [number for number, _ in index.search("lamp")] == [2, 0, 1]


def test_only_the_beginning_of_a_huge_query_is_read(tmp_path: Path) -> None:
    index = index_of(tmp_path, "lamp", "mug")
    assert [number for number, _ in index.search("x " * MAX_QUERY + "lamp")] == []
    assert [number for number, _ in index.search("lamp " + "x " * MAX_QUERY)] == [0]
