"""Any string is a legal reply: never an exception, and never a cost that a model could hold a run up with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ragen.env import resolve_env

LANGUAGE_ENVS = ("countdown", "metamathqa", "search", "sudoku", "webshop")
MILLION = 1_000_000

WORDS = ("place ", "at ", "row ", "col ", "the answer is ", "47 + 31 + 63", "__import__('os')", "0x", "e")
MARKS = ("(", ")", ",", "1", "9", "**", "//", "_", ".", "#", "\\\n", "\n", "\t", "\0")
SCRIPTS = ("٣", "９", "ß", "İ", "答", "🎲", "\u2028", "\ud800")
FRAGMENTS = st.sampled_from((*WORDS, *MARKS, *SCRIPTS))
REPLIES = st.text() | st.lists(FRAGMENTS, max_size=12).map("".join) | st.text("0123456789+-*/%() ,.")
HUGE = {
    "spaces": " " * MILLION,
    "digits": "1" * MILLION,
    "parentheses": "(" * MILLION,
    "signs": "-" * MILLION,
    "unfinished placements": "place 1 at " * (MILLION // 11),
    "placements in brackets": "(1,2," * (MILLION // 5),
    "digits of another script": "٣" * MILLION,
    "an expression far away": " " * MILLION + "47 + 31 + 63",
    "a search for much": f"search[{'shoe ' * (MILLION // 5)}]",
    "a search for many things": f"search[{' '.join(map(str, range(MILLION // 7)))}]",
    "a search in brackets": "search[" * (MILLION // 7) + "]",
    "a click on much": f"click[{'x' * MILLION}]",
}
NASTY = {
    "a power tower": "9**9**9**9",
    "a power of the puzzle's numbers": "47**31**63",
    "a shift": "47<<31<<63",
    "a call": "__import__('os').system('echo 47 31 63')",
    "digits and spaces": "1" + " " * 9_990,
    "nearly too many digits": "1" * 9_999,
    "many short runs": "1 at 1 " * 1_400,
    "brackets and blanks": "( 1 , 1 ," + " " * 9_000,
    "a surrogate": "search[\ud800]",
    "a search for a category": "search[<c>]",
    "a search for nothing": "search[ ]",
    "operators of a search": 'search[" OR title:x AND NOT (b * NEAR(a b) ; drop table]',
}


def fresh(env_type: str, seed: int = 0) -> Any:
    env_class, config_class = resolve_env(env_type)
    env = env_class(config_class())
    env.reset(seed)
    return env


def assert_legal(env: Any, reply: str) -> None:
    text, reward, done, info = env.step(reply)
    assert isinstance(text, str)
    assert isinstance(reward, int | float)
    assert isinstance(done, bool)
    assert {"action_is_valid", "success"} <= info.keys()
    assert isinstance(env.render(), str)
    json.dumps(info)


@pytest.mark.parametrize("env_type", LANGUAGE_ENVS)
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reply=REPLIES)
@example(reply="")
@example(reply="\0")
def test_any_text_is_a_legal_reply(env_type: str, reply: str) -> None:
    assert_legal(fresh(env_type), reply)


@pytest.mark.parametrize("env_type", LANGUAGE_ENVS)
@pytest.mark.timeout(
    30
)  # a hundred times what it takes; with a cost that grows as the square of a reply, this is hours
def test_a_reply_made_to_cost_time_costs_none(env_type: str) -> None:
    for name, reply in {**HUGE, **NASTY}.items():
        env = fresh(env_type)
        assert_legal(env, reply)
        assert len(env.render()) < 20_000, f"{name}: a huge reply must not come back as a huge observation"
