from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragen.env import resolve_env
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv, parse_action
from ragen.env.webshop.goals import Goal
from ragen.env.webshop.pages import PER_PAGE, item_page, part_page, results_page
from ragen.env.webshop.records import Record
from ragen.env.webshop.reward import alike, count_options, score_purchase, type_parts
from ragen.errors import InputError, StateError
from support import env_contract, golden
from support import webshop_data as data

CASES = [("up25", "webshop_synth"), ("up26", "webshop_synth"), ("up25", "webshop_small1000")]
ACTIONS = ["search[lamp]", "click[lamp000001]", "click[tall]", "click[tangerine]", "click[buy now]"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(data.write_shop(tmp_path_factory.mktemp("shop")))


@pytest.fixture
def env(folder: str, cache: str) -> WebShopEnv:
    """A shop of three products, with the goal of buying its lamp; every mode has all five goals."""
    env = WebShopEnv(WebShopEnvConfig(data_dir=folder, cache_dir=cache))
    seeds = (seed for seed in range(5) if env.reset(seed) and goal_of(env).asin == "LAMP000001")
    next(seeds)
    return env


def goal_of(env: WebShopEnv) -> Goal:
    assert env.goal is not None
    return env.goal


def golden_env(version: str, name: str, cache: str) -> WebShopEnv:
    folder = str(golden.golden_file("inputs", name))
    return WebShopEnv(WebShopEnvConfig(data_dir=folder, compat=version, cache_dir=cache))  # type: ignore[arg-type]


def walk(env: WebShopEnv, *actions: str) -> tuple[str, float, bool, dict[str, Any]]:
    result: Any = None
    for action in actions:
        result = env.step(action)
    return result


# --- equal to the reference


@pytest.mark.parametrize(("version", "name"), CASES)
def test_every_reset_is_that_of_the_reference(version: str, name: str, cache: str) -> None:
    env = golden_env(version, name, cache)
    for record in golden.records(version, name, "resets.jsonl.gz"):
        if record["kind"] == "reset":
            assert env.reset(record["seed"], record["mode"]) == env.render() == record["state"]
            assert (env.goal_index, env.get_available_actions()) == (record["goal_index"], record["available"])


@pytest.mark.parametrize(("version", "name"), CASES)
def test_every_step_is_that_of_the_reference(version: str, name: str, cache: str) -> None:
    env = golden_env(version, name, cache)
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
def test_odd_actions_do_what_they_do_in_the_reference_or_are_plain_words(version: str, name: str, cache: str) -> None:
    env = golden_env(version, name, cache)
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
def test_every_rollout_is_that_of_the_reference(version: str, name: str, cache: str) -> None:
    mode, limit = "", 0
    envs: dict[int, WebShopEnv] = {}
    for record in golden.records(version, name, "rollouts.jsonl.gz"):
        if record["kind"] == "session":
            mode, limit = record["mode"], record["max_actions"]["WebShop"]
        elif record["kind"] == "reset":
            envs = {entry["env_id"]: golden_env(version, name, cache) for entry in record["envs"]}
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
    assert env.chosen == {"color": color, "size": size}
    text, reward, done, info = env.step("click[buy now]")
    assert done is True
    assert (reward, info["success"]) == ((1.0, 1) if color != "tangerine" else (0.75, 0)), "tangerine holds a tan"
    assert text.startswith("Thank you for shopping with us!")
    assert env.get_available_actions() == []


def test_the_item_page_lists_options_price_rating_and_buttons(env: WebShopEnv) -> None:
    text = walk(env, "search[lamp]", "click[lamp000001]")[0]
    assert text.split(" [SEP] ")[2:] == [
        "Back to Search", "< Prev", "color", "navy | blue", "tangerine", "size", "tall", "short",
        "Brass desk lamp by Ember", "Price: $20.0 to $30.0", "Rating: N.A.", "Description", "Features", "Reviews",
        "Buy Now",
    ]  # fmt: skip
    assert env.get_available_actions()[:6] == [
        f"click[{button}]" for button in ("back to search", "< prev", "description", "features", "reviews", "buy now")
    ]


@pytest.mark.parametrize(
    ("part", "texts"),
    [
        ("description", ["A lamp for late work. It is dimmable."]),
        ("features", ["DIMMABLE: turn it down", "Long cord"]),
        ("reviews", []),
    ],
)
def test_a_part_of_a_product_has_a_page_with_only_ways_back(env: WebShopEnv, part: str, texts: list[str]) -> None:
    text, _, _, info = walk(env, "search[lamp]", "click[lamp000001]", f"click[{part}]")
    assert text.split(" [SEP] ")[2:] == ["Back to Search", "< Prev", *texts]
    assert env.get_available_actions() == ["click[back to search]", "click[< prev]"]
    assert info["end_of_page"] == 1
    assert "Buy Now" in env.step("click[< prev]")[0]


def test_attributes_have_a_page_where_they_are_asked_for(folder: str, cache: str) -> None:
    env = WebShopEnv(WebShopEnvConfig(data_dir=folder, cache_dir=cache, show_attrs=True))
    env.reset(0)
    text = walk(env, "search[lamp]", "click[lamp000001]", "click[attributes]")[0]
    assert text.endswith("< Prev [SEP] dimmable [SEP] easy to assemble")


def test_reviews_are_shown_and_rated_where_there_are_some() -> None:
    review = {"title": "Good", "score": 4, "body": "It lights."}
    product = make_record(reviews=[review, {**review, "score": 5}])
    assert "Rating: 4.5" in item_page("buy", product).text
    assert part_page("buy", product, "reviews").text.endswith(
        "Good (4 of 5): It lights. [SEP] Good (5 of 5): It lights."
    )


def test_choices_last_on_a_products_pages_and_go_with_the_results(env: WebShopEnv) -> None:
    walk(env, "search[lamp]", "click[lamp000001]", "click[tall]", "click[features]", "click[< prev]")
    assert env.chosen == {"size": "tall"}
    walk(env, "click[short]")
    assert env.chosen == {"size": "short"}
    walk(env, "click[< prev]", "click[lamp000001]")
    assert env.chosen == {}


def test_results_come_ten_to_a_page_and_the_pages_end(cache: str) -> None:
    env = WebShopEnv(WebShopEnvConfig(cache_dir=cache))
    env.reset(1)
    text = walk(env, "search[men's dress shirt]")[0]
    total = int(text.split("Total results: ")[1].split(")")[0])
    pages = -(-total // PER_PAGE)
    assert pages > 1
    shown: list[str] = []
    for number in range(1, pages + 1):
        assert f"Page {number} (Total results: {total})" in env.observation
        assert ("< Prev" in env.observation) == (number > 1)
        shown += [action for action in env.get_available_actions() if action.startswith("click[r")]
        info = walk(env, "click[next >]")[3]
        assert info["action_is_effective"] is True
    assert len(set(shown)) == len(shown) == total
    assert env.get_available_actions() == ["click[back to search]", "click[< prev]"]
    assert info["end_of_page"] == 1
    last = env.observation
    text, reward, done, info = env.step("click[next >]")
    assert (text, reward, done, info["action_is_valid"], info["action_is_effective"]) == (last, 0, False, False, False)
    env.step("click[< prev]")
    assert f"Page {pages} " in env.observation


def test_going_back_from_a_product_leads_to_the_page_it_was_opened_on(cache: str) -> None:
    env = WebShopEnv(WebShopEnvConfig(cache_dir=cache))
    env.reset(1)
    walk(env, "search[men's dress shirt]", "click[next >]")
    before = env.observation
    walk(env, env.get_available_actions()[-1], "click[description]", "click[< prev]", "click[< prev]")
    assert env.observation == before


def test_a_search_that_finds_nothing_shows_an_empty_page(env: WebShopEnv) -> None:
    text = walk(env, "search[zeppelin]")[0]
    assert text.endswith("Back to Search [SEP] Page 1 (Total results: 0) [SEP] Next >")
    assert env.get_available_actions() == ["click[back to search]", "click[next >]"]


@pytest.mark.parametrize("words", ["<r>", "<a> dimmable", "<c> garden", "<q> mugs", "<c>", "<a>"])
def test_words_in_angle_brackets_are_only_words(env: WebShopEnv, words: str) -> None:
    with_brackets = walk(env, f"search[{words}]")[0]
    without = walk(env, "search[" + words.replace("<", "").replace(">", "") + "]")[0]
    assert with_brackets == without


def test_equal_values_of_two_options_are_one_button_for_the_later() -> None:
    product = make_record(options={"color": ["clear", "red"], "lid": ["clear", "none"]})
    page = item_page("buy", product)
    assert page.targets["clear"].what == "lid"
    assert list(page.targets)[-3:] == ["clear", "red", "none"]


def test_a_value_with_a_buttons_name_does_not_take_the_button() -> None:
    page = item_page("buy", make_record(options={"size": ["buy now", "search", "small"]}))
    assert page.targets["buy now"].does == "buy"
    assert "search" not in page.targets
    assert page.targets["small"].does == "choose"


def test_blank_texts_vanish_if_they_hold_a_line_break_and_show_if_not() -> None:
    page = part_page("buy", make_record(bullets=["a", "", " \n ", " ", "b "]), "features")
    assert page.text.split(" [SEP] ")[-3:] == ["a", "", "b"]


def test_a_page_of_results_after_the_last_is_an_end_only_without_products() -> None:
    assert results_page("buy", [], [], 2, 0).is_end
    assert not results_page("buy", [], [], 1, 0).is_end


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
        "query": "lamps", "product_category": "Home › Light › Lamps", "nouns": ("brass", "desk", "lamp"),
    }  # fmt: skip
    return Goal(**plain | changes)


def test_the_score_weighs_attributes_options_and_price() -> None:
    goal = make_goal(attributes=("easy to assemble", "washable"), options=(("color", "red"),))
    score, parts = score_purchase(make_record(), 12.0, {"color": "red"}, goal)
    assert score == 2 / 4
    assert {key: parts[key] for key in ("r_att", "w_att", "r_option", "w_option", "r_price", "w_price")} == {
        "r_att": 0.5, "w_att": 0.5, "r_option": 1.0, "w_option": 0.25, "r_price": False, "w_price": 0.25,
    }  # fmt: skip
    assert "r_option" not in score_purchase(make_record(), 1.0, {}, make_goal())[1]


@pytest.mark.parametrize("attribute", ["easy to assemble", "assemble easy", "dimmable", "long cord", "brass desk"])
def test_an_attribute_may_be_listed_or_stand_in_any_text(attribute: str) -> None:
    assert score_purchase(make_record(), 1.0, {}, make_goal(attributes=(attribute,)))[1]["r_att"] == 1.0


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, 1.0),
        ({"query": "other", "product_category": "A › B", "nouns": ("brass", "a", "b", "c")}, 1.0),
        ({"query": "other", "product_category": "Home › Light", "nouns": ("brass", "a", "b", "c", "d")}, 1.0),
        ({"query": "other", "product_category": "Home › B", "nouns": ("brass", "a", "b", "c", "d")}, 0.5),
        ({"nouns": ("brass", *"abcdefghijk")}, 0.1),
        ({"nouns": ("a", "b")}, 0.0),
        ({"query": "other", "product_category": "", "nouns": ()}, 0.5),
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


@settings(max_examples=30)
@given(st.text(max_size=20), st.text(max_size=20))
def test_phrases_are_alike_where_thefuzz_says_more_than_85(one: str, other: str) -> None:
    fuzz = pytest.importorskip("thefuzz.fuzz")
    assert alike(one, other) == (fuzz.token_set_ratio(one, other) > 85)


def test_the_newer_generation_rewards_only_a_perfect_purchase(folder: str, cache: str) -> None:
    env = WebShopEnv(WebShopEnvConfig(data_dir=folder, cache_dir=cache, compat="up26"))
    seed = next(seed for seed in range(9) if env.reset(seed) and goal_of(env).asin == "LAMP000001")
    env.reset(seed)
    _, reward, done, info = walk(env, "search[lamp]", "click[lamp000001]", "click[buy now]")
    assert (reward, done, info["reward"], info["raw_reward"]) == (0.0, True, 0.0, 0.5)
    assert "more than 2 times.\nAlmost never" in env.render()


# --- any text is a legal action


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[red Lamp]", ("search", "red lamp")),
        ("click[Buy Now] please", ("click", "buy now")),
        ("click[x]\nmore", ("click", "x")),
        ("search[a\nb]", ("", "")),
        ("search[a][b]", ("", "")),
        ("search[[]", ("search", "[")),
        ("search[]]", ("search", "]")),
        ("search[]", ("", "")),
        ("Search[a]", ("", "")),
        (" search[a]", ("", "")),
        ("[a]", ("", "")),
        ("click[a", ("", "")),
        ("", ("", "")),
    ],
)
def test_actions_are_parsed_as_the_reference_does(action: str, parsed: tuple[str, str]) -> None:
    assert parse_action(action) == parsed


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


def test_the_registry_knows_the_shop() -> None:
    assert resolve_env("webshop") == (WebShopEnv, WebShopEnvConfig)


def test_seed_and_actions_decide_everything(folder: str, cache: str) -> None:
    def make_env() -> WebShopEnv:
        return WebShopEnv(WebShopEnvConfig(data_dir=folder, cache_dir=cache))

    env_contract.assert_seed_and_actions_decide_everything(make_env, ACTIONS)
    env_contract.assert_saves_at_any_moment(make_env, ACTIONS)
    env_contract.assert_pickles_in_mid_episode(make_env, ACTIONS, limit=6000)
    env_contract.assert_leaves_the_global_generators_alone(make_env, ACTIONS)


def test_nothing_is_built_before_the_first_reset(folder: str, tmp_path: Path) -> None:
    WebShopEnv(WebShopEnvConfig(data_dir=folder, cache_dir=str(tmp_path / "cache")))
    assert not (tmp_path / "cache").exists()


def test_a_step_before_a_reset_or_with_something_else_than_text_is_refused(folder: str, cache: str) -> None:
    env = WebShopEnv(WebShopEnvConfig(data_dir=folder, cache_dir=cache))
    for call in (lambda: env.step("noop"), env.render, env.get_available_actions):
        with pytest.raises(StateError, match="webshop"):
            call()
    env.reset(1)
    with pytest.raises(InputError, match="action 3, expected text"):
        env.step(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="text only"):
        env.render("rgb_array")
    with pytest.raises(InputError, match="seed = 'x'"):
        env.reset("x")  # type: ignore[arg-type]
    assert env.reset(None)
