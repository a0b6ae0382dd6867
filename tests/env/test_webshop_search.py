from __future__ import annotations

import pytest

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
        assert [catalogue.card(number).asin for number, _ in found] == [asin for asin, _ in record["hits"]], record["q"]
        for (_, score), (_, theirs) in zip(found, record["hits"], strict=True):
            assert score == pytest.approx(theirs, abs=1.1e-4)  # theirs are rounded to 4 places, equal ones pulled apart
