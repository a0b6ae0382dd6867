from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.reward import type_parts
from support import golden

pytestmark = pytest.mark.usefixtures("module_cache")

CASES = [("up25", "webshop_synth"), ("up26", "webshop_synth"), ("up25", "webshop_small1000")]


def golden_env(version: str, name: str) -> WebShopEnv:
    folder = str(golden.golden_file("inputs", name))
    return WebShopEnv(WebShopEnvConfig(data_dir=folder, compat=version))  # type: ignore[arg-type]


# --- equal to the reference


@pytest.mark.parametrize(("version", "name"), CASES)
def test_every_reset_is_that_of_the_reference(version: str, name: str) -> None:
    env = golden_env(version, name)
    for record in golden.records(version, name, "resets.jsonl.gz"):
        if record["kind"] == "reset":
            assert env.reset(record["seed"], record["mode"]) == env.render() == record["state"]
            assert (env.goal_index, env.get_available_actions()) == (record["goal_index"], record["available"])


@pytest.mark.parametrize(("version", "name"), CASES)
def test_every_step_is_that_of_the_reference(version: str, name: str) -> None:
    env = golden_env(version, name)
    for record in golden.records(version, name, "episodes.jsonl.gz"):
        where = (name, record.get("ep"), record.get("t"), record.get("action"))
        if record["kind"] == "reset":
            assert env.reset(record["seed"], record["mode"]) == record["state"], where
        elif record["kind"] == "step":
            text, reward, done, info = env.step(record["action"])
            assert (text, env.render()) == (record["obs"], record["render"]), where
            assert env.get_available_actions() == record["available"], where
            golden.assert_same_number(reward, record["reward"], where)
            assert done is record["done"], where
            assert json.dumps(info) == json.dumps(record["info"]), where


# --- the reward


# --- the reward


@pytest.mark.parametrize(
    ("query", "category", "words", "kind"),
    [
        ("lamps", "Home › Light", ("brass", "lamp"), 1.0),
        ("other", "A › B", ("brass", *"abc"), 1.0),
        ("other", "Home › Light", ("brass", *"abcd"), 1.0),
        ("other", "Home › B", ("brass", *"abcd"), 0.5),
        ("lamps", "", ("brass", *"abcdefghijk"), 0.1),
        ("lamps", "", ("a", "b"), 0.0),
        ("other", "", (), 0.5),
    ],
)
def test_the_type_is_judged_by_search_categories_and_title(
    query: str, category: str, words: tuple[str, ...], kind: float
) -> None:
    product: Any = SimpleNamespace(query="lamps", product_category="Home › Light › Lamps", title="Brass desk lamp")
    wanted = SimpleNamespace(query=query, product_category=category, title=" ".join(words))
    goal: Any = SimpleNamespace(product=wanted)
    assert type_parts(product, goal)["r_type"] == kind
