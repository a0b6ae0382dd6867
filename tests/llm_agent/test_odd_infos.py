"""What environments put into infos and observations, however odd: written, and the same in every run."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from ragen.files import json_text
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.prompting.conversation import ConversationBuilder, TagPrompt, prompt_rows
from ragen.llm_agent.prompting.replies import ControlTokens
from ragen.llm_agent.rollout.trajectories import line_of


class Mute:
    """Cannot say what it is."""

    def __repr__(self) -> str:
        raise RuntimeError("speechless")


def told(info: dict[Any, Any]) -> Any:
    return json.loads(line_of({"infos": [info]}), parse_constant=refused)["infos"][0]


def refused(constant: str) -> None:
    """NaN and Infinity are no JSON."""
    raise AssertionError(constant)


def test_numbers_that_json_does_not_know_are_null() -> None:
    odd = [math.nan, math.inf, -math.inf, np.float32("nan"), np.array([[1.0, np.inf]]), {"deep": (np.nan,)}, {1.0}]
    assert told({"odd": odd, math.nan: 1}) == {
        "odd": [None, None, None, None, [[1.0, None]], {"deep": [None]}, [1.0]],
        "nan": 1,
    }
    assert json.loads(json_text({"a": math.nan, "b": {(1, 2): math.inf}}, indent=2)) == {
        "a": None,
        "b": {"(1, 2)": None},
    }


def test_keys_that_are_no_texts_and_dicts_that_hold_themselves_are_written() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    info = {("a", 1): 2, np.int64(5): 3, 7: 4, "mute": Mute(), "endless": endless}
    written = told(info)
    assert {key: written[key] for key in ("('a', 1)", "5", "7", "mute")} == {
        "('a', 1)": 2,
        "5": 3,
        "7": 4,
        "mute": "a Mute whose repr() raises",
    }
    assert line_of({"infos": [info]}) == line_of({"infos": [info]})


def test_values_that_cannot_say_what_they_are_do_not_lose_the_row() -> None:
    info = {"kind": np.float32, "huge": 10**5000, "sound": [1, "two"]}
    assert told(info) == {"kind": "<class 'numpy.float32'>", "huge": "a int whose repr() raises", "sound": [1, "two"]}


def test_half_a_surrogate_pair_is_written_and_no_tokenizer_sees_it() -> None:
    assert told({"text": "x \ud800 y"}) == {"text": "x \N{REPLACEMENT CHARACTER} y"}
    prompts = {"Odd": TagPrompt("", "")}
    conversations = ConversationBuilder(ContextSettings(), prompts, {}, ControlTokens([]), "<think>")
    (row,) = prompt_rows([{"tag": "Odd", "history": [{"state": "x \ud800 y"}]}], None)
    assert "\nx \N{REPLACEMENT CHARACTER} y\n" in conversations.messages(row)[-1]["content"]
