from __future__ import annotations

import json
from typing import Any

import pytest

from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.goals import Goal
from ragen.env.webshop.records import Record
from ragen.env.webshop.reward import type_parts
from support import golden
from support import webshop_data as data

pytestmark = pytest.mark.usefixtures("module_cache")

CASES = [("up25", "webshop_synth"), ("up26", "webshop_synth"), ("up25", "webshop_small1000")]
ACTIONS = ["search[lamp]", "click[lamp000001]", "click[tall]", "click[tangerine]", "click[buy now]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(data.write_shop(tmp_path_factory.mktemp("shop")))


@pytest.fixture
def env(folder: str) -> WebShopEnv:
    """A shop of three products, with the goal of buying its lamp; every mode has all five goals."""
    env = WebShopEnv(WebShopEnvConfig(data_dir=folder))
    seeds = (seed for seed in range(5) if env.reset(seed) and goal_of(env).asin == "LAMP000001")
    next(seeds)
    return env


def goal_of(env: WebShopEnv) -> Goal:
    assert env.goal is not None
    return env.goal


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


def make_record(**changes: Any) -> Record:
    plain: dict[str, Any] = {
        "asin": "X", "title": "Brass desk lamp", "description": "It is dimmable.", "bullets": ["Long cord"],
        "prices": [5.0], "price_text": "$5.0", "options": {}, "attributes": ["easy to assemble"], "query": "lamps",
        "category": "garden", "product_category": "Home › Light › Lamps",
    }  # fmt: skip
    return Record(**plain | changes)


def make_goal(**changes: Any) -> Goal:
    plain: dict[str, Any] = {
        "asin": "X", "instruction": "buy", "attributes": ("easy to assemble",), "options": (), "price_upper": 10.0,
        "query": "lamps", "product_category": "Home › Light › Lamps", "words": ("brass", "desk", "lamp"),
    }  # fmt: skip
    return Goal(**plain | changes)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, 1.0),
        ({"query": "other", "product_category": "A › B", "words": ("brass", "a", "b", "c")}, 1.0),
        ({"query": "other", "product_category": "Home › Light", "words": ("brass", "a", "b", "c", "d")}, 1.0),
        ({"query": "other", "product_category": "Home › B", "words": ("brass", "a", "b", "c", "d")}, 0.5),
        ({"words": ("brass", *"abcdefghijk")}, 0.1),
        ({"words": ("a", "b")}, 0.0),
        ({"query": "other", "product_category": "", "words": ()}, 0.5),
    ],
)
def test_the_type_is_judged_by_search_categories_and_title(changes: dict[str, Any], kind: float) -> None:
    assert type_parts(make_record(), make_goal(**changes))["r_type"] == kind
