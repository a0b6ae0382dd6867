from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv, parse_action
from ragen.env.webshop.goals import Goal
from ragen.env.webshop.records import Record
from ragen.env.webshop.reward import count_options, type_parts
from support import env_contract, golden
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


def walk(env: WebShopEnv, *actions: str) -> tuple[str, float, bool, dict[str, Any]]:
    result: Any = None
    for action in actions:
        result = env.step(action)
    return result


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


@pytest.mark.parametrize(("version", "name"), CASES)
def test_odd_actions_do_what_they_do_in_the_reference_or_are_plain_words(version: str, name: str) -> None:
    env = golden_env(version, name)
    probes = list(golden.records(version, name, "probes.jsonl.gz"))
    instruction = next(record["obs"] for record in probes if "obs" in record).split(" [SEP] ")[1]
    seeds = ((seed, mode) for mode in ("train", "val", "test") for seed in range(1500))
    seed, mode = next(pair for pair in seeds if env.reset(*pair) and goal_of(env).instruction == instruction)
    for record in probes:
        env.reset(seed, mode)
        text, reward, done, info = env.step(record["action"])
        if "<" not in record["action"]:
            assert text == record["obs"], record["action"]
            assert json.dumps([reward, done, info]) == json.dumps([record[key] for key in ("reward", "done", "info")])
        else:
            env.reset(seed, mode)
            words = record["action"].replace("<", "").replace(">", "")
            assert env.step(words)[0] == text, "the reference runs a command of its own, or crashes"


@pytest.mark.parametrize(("version", "name"), CASES)
def test_every_rollout_is_that_of_the_reference(version: str, name: str) -> None:
    mode, limit = "", 0
    envs: dict[int, WebShopEnv] = {}
    for record in golden.records(version, name, "rollouts.jsonl.gz"):
        if record["kind"] == "session":
            mode, limit = record["mode"], record["max_actions"]["WebShop"]
        elif record["kind"] == "reset":
            envs = {entry["env_id"]: golden_env(version, name) for entry in record["envs"]}
            left = dict.fromkeys(envs, limit)
            for entry in record["envs"]:
                assert envs[entry["env_id"]].reset(entry["seed"], mode) == entry["state"]
        elif record["kind"] == "step":
            for entry in record["envs"]:
                env_id = entry["env_id"]
                played = turn(envs[env_id], entry["actions"][: left[env_id]], version)
                left[env_id] -= len(played[0])
                assert json.dumps(played) == json.dumps([entry[key] for key in ("executed", "reward", "info", "state")])


def turn(env: WebShopEnv, actions: list[str], version: str) -> list[Any]:
    """A turn as RAGEN's manager plays it."""
    executed, total, infos = [], 0, []
    for action in actions:
        _, reward, done, info = env.step(action)
        executed.append(action)
        total += reward  # type: ignore[assignment]
        infos.append(info)
        if done:
            break
    merged = {key: value for info in infos for key, value in info.items()}
    if version == "up26":
        merged["raw_reward"] = float(sum(info["raw_reward"] for info in infos))
        if not executed:
            merged["manager_invalid_action"] = True
    return [executed, total, merged, env.render()]


# --- the pages


def test_a_lamp_is_found_opened_chosen_and_bought(env: WebShopEnv) -> None:
    goal = goal_of(env)
    color, size = (value for _, value in goal.options)
    text, reward, done, info = walk(env, "search[desk lamp]", "click[lamp000001]", f"click[{color}]", f"click[{size}]")
    assert (reward, done, info["action_is_valid"], info["action_is_effective"]) == (0.0, False, True, False)
    text, reward, done, info = env.step("click[buy now]")
    assert done is True
    assert (reward, info["success"]) == ((1.0, 1) if color != "tangerine" else (0.75, 0)), "tangerine holds a tan"
    assert text.startswith("Thank you for shopping with us!")
    assert env.get_available_actions() == []


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


@pytest.mark.parametrize(
    ("chosen", "wanted", "count"),
    [
        (["red"], [("color", "red")], 1),
        (["navy blue"], [("color", "dark blue")], 1),
        (["tangerine"], [("color", "tangerine")], 0),
        (["tangerine"], ["tangerine"], 1),
        (["large"], [("color", "red"), ("size", "large")], 1),
        ([], [("color", "red")], 0),
        (["x-large"], [("size", "x large")], 1),
    ],
)
def test_options_are_compared_as_the_reference_does(chosen: list[str], wanted: list[Any], count: int) -> None:
    assert count_options(chosen, wanted) == count


# --- any text is a legal action


@given(st.text(alphabet="search[]cliks \nA", max_size=30))
def test_parsing_agrees_with_the_regular_expression_of_the_reference(text: str) -> None:
    import re

    found = re.match(r"(.+)\[(.+)\]", text)
    verb, argument = (found[1], found[2].lower()) if found else ("", "")
    assert parse_action(text) == ((verb, argument) if verb in ("search", "click") else ("", ""))


def odd_actions() -> Iterator[st.SearchStrategy[str]]:
    yield st.text(max_size=60)
    yield st.text(alphabet=st.characters(categories=["Cs", "Cc", "Co", "Lo", "So", "Mn"]), max_size=40)
    yield st.builds("{}[{}]".format, st.sampled_from(["search", "click", "buy"]), st.text(max_size=40))
    yield st.sampled_from([*ACTIONS, "click[next >]", "click[< prev]", "click[back to search]", "click[description]"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.one_of(*odd_actions()), max_size=8))
def test_no_text_ever_fails_and_every_state_is_text(env: WebShopEnv, actions: list[str]) -> None:
    env.reset(3)
    for action in actions:
        text, reward, done, info = env.step(action)
        assert isinstance(text, str)
        assert 0 <= reward <= 1
        assert isinstance(done, bool)
        assert all(isinstance(value, bool | int | float) for value in info.values())
        assert env.render().startswith(text)


HUGE = 1_000_000


@pytest.mark.parametrize(
    "action",
    [
        "x" * HUGE, "[" * HUGE, "]" * HUGE, "[]" * HUGE, "\n" * HUGE, "click[" + "B" * HUGE + "]",
        "search[" * HUGE + "x]", *(f"search[{piece * (HUGE // len(piece))}]" for piece in (
            "a", "lamp ", "_", "a'", "1,", "漢字", "😀", "👩\u200d", "a\u0301", "\x00", "İ", "q w e ",
        )),
    ],
    ids=ascii,
)  # fmt: skip
@pytest.mark.timeout(30)  # where cost grows with the square of the length, this is hours
def test_a_megabyte_of_anything_is_played_like_a_word(env: WebShopEnv, action: str) -> None:
    assert env.step(action)[2] is False


# --- what every environment promises


def test_seed_and_actions_decide_everything(folder: str) -> None:
    def make_env() -> WebShopEnv:
        return WebShopEnv(WebShopEnvConfig(data_dir=folder))

    env_contract.assert_seed_and_actions_decide_everything(make_env, ACTIONS)
    env_contract.assert_saves_at_any_moment(make_env, ACTIONS)
    env_contract.assert_pickles_in_mid_episode(make_env, ACTIONS, limit=6000)
    env_contract.assert_leaves_the_global_generators_alone(make_env, ACTIONS)
