"""From replies to actions: the table of each type, in both styles, and what the rules must not do."""

from __future__ import annotations

import pytest

from ragen.llm_agent.prompts.replies import create_projection_function, generic_projection

RAGEN = [
    ("sokoban", "<action>up</action>", 1, True),
    ("sokoban", "<action>go\nWEST</action>", 3, True),
    ("sokoban", "<action>up</action> no: <action>right</action>", 4, True),
    ("sokoban", "<answer>Left || Up</answer>", 3, True),
    ("sokoban", "<action>invalid</action>", 1, False),
    ("sokoban", "go up", 1, False),
    ("sokoban", "<action>up", 1, False),
    ("frozen_lake", "<action>up</action>", 4, True),
    ("bandit", "I take <answer>Dragon</answer>", 2, True),
    ("bandit", "the phoenix, rather than the dragon", 1, True),
    ("bandit", "<answer> I pull arm 2, not 1. </answer>", 2, True),
    ("bandit", "I would pull arm 2.", 2, True),
    ("bandit", "<action>2.5</action>", 1, False),
    ("webshop", "<action>search[Red Shoes]</action>", "search[Red Shoes]", True),
    ("webshop", "then click[< Prev]", "click[< Prev]", True),
    ("webshop", "<action>buy now</action>", "click[buy now]", True),
    ("webshop", "<action>back</action>", "click[back to search]", True),
    ("countdown", "<answer>(3 + 4) * 5</answer>", "(3 + 4) * 5", True),
    ("countdown", "With 3 numbers: 3 + 4 * 5 is it.", "3 + 4 * 5", True),
    ("countdown", "<answer>__import__('os')</answer>", "__import__('os')", False),
    ("metamathqa", "so <answer> 42 </answer>", "42", True),
    ("metamathqa", "The answer is 29.", "29", True),
    ("metamathqa", "<answer>The answer is: $1,234 dollars</answer>", "1234", True),
    ("metamathqa", "8 * 3 = 24, and 24 + 5 = 29, so he is 29 years old.", "29", True),
    ("metamathqa", "The answer is -2.5 since 5 / 2 = 2.5", "-2.5", True),
    ("metamathqa", r"<answer>\frac{1}{2}</answer>", r"\frac{1}{2}", True),
    ("metamathqa", "<answer>I do not know</answer>", "I do not know", False),
    ("unknown", "<action>x</action>", "x", True),
]

THOUGHT = "<think>so</think>"
VERL_AGENT = [
    ("sokoban", f"{THOUGHT}<action>up</action>", 1, 1),
    ("sokoban", "<action>up</action>", 1, 0),
    ("sokoban", f"{THOUGHT}<action>still</action>", 0, 1),
    ("sokoban", f"{THOUGHT}<action>jump</action>", 0, 0),
    ("sokoban", f"{THOUGHT}up", 0, 0),
    ("webshop", f"{THOUGHT}<action>Search[Red]</action>", "search[red]", 1),
    ("webshop", f"{THOUGHT}<action>search[\u978b]</action>", "search[\u978b]", 0),
    ("webshop", "I would rather Search[Red Shoes]", "ther search[red shoes]"[-20:], 0),
    ("bandit", f"{THOUGHT}<answer>dragon</answer>", 2, 1),
]


@pytest.mark.parametrize(("env_type", "text", "action", "valid"), RAGEN)
def test_replies_are_read_in_our_style(env_type, text, action, valid):
    actions, valids = create_projection_function(env_type)([text])
    assert actions == [action] and valids == [valid] and type(valids[0]) is bool


@pytest.mark.parametrize(("env_type", "text", "action", "valid"), VERL_AGENT)
def test_replies_are_read_in_verl_agents_style(env_type, text, action, valid):
    actions, valids = create_projection_function(env_type, "verl-agent")([text])
    assert actions == [action] and valids == [valid] and type(valids[0]) is int


def test_names_are_those_of_each_environment():
    spaces = [{1: "Trader", 2: "Nurse"}, {1: "Nurse", 2: "Trader"}]
    assert create_projection_function("bandit")(["Nurse"] * 2, spaces) == ([2, 1], [True, True])
    assert create_projection_function("bandit")(["arm 0"] * 2, [{0: "a", 1: "b"}, {1: "a", 2: "b"}]) == (
        [0, 1],
        [True, False],
    )
    assert create_projection_function("sokoban")(["<action>hop</action>"], [{7: "Hop"}]) == ([7], [True])
    cube = {1: "U", 2: "U'"}
    assert generic_projection(["<action>U'</action>", "<action>U</action>", "?"], [cube] * 3)[0] == [2, 1, None]


@pytest.mark.parametrize("style", ["ragen", "verl-agent"])
@pytest.mark.parametrize("env_type", ["sokoban", "webshop", "countdown", "metamathqa", "bandit", "generic"])
def test_what_is_given_is_not_changed_and_none_was_not_asked(env_type, style):
    texts = ["<action>up</action>", None]
    actions, valids = create_projection_function(env_type, style)(texts)
    assert texts == ["<action>up</action>", None] and actions is not texts
    assert actions[1] is None and valids[1] == 1


@pytest.mark.parametrize("env_type", ["sokoban", "webshop", "countdown", "bandit"])
def test_no_reply_takes_long_to_read(env_type):
    """So long that reading it in quadratic time would take longer than any test is given."""
    for text in ("<action>", ".", "search[", "(", "İ"):
        assert create_projection_function(env_type)([text * 200_000])[1] == [False]
