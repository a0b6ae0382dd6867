from __future__ import annotations

import pytest

from ragen.env.webshop.analyzer import analyze
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from support import golden

pytestmark = pytest.mark.usefixtures("module_cache")


@pytest.mark.parametrize("data", ["webshop_synth", "webshop_small1000"])
def test_every_ranking_is_that_of_the_reference_engine(data: str) -> None:
    folder = str(golden.golden_file("inputs", data))
    catalogue = WebShopEnv(WebShopEnvConfig(data_dir=folder)).catalogue
    queries = [record for record in golden.records("up25", data, "search.jsonl.gz") if record["kind"] == "q"]
    assert len(queries) > 250
    for record in queries:
        found = catalogue.search(record["q"])
        assert [catalogue.product(number).asin for number, _ in found] == [asin for asin, _ in record["hits"]], record[
            "q"
        ]
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
