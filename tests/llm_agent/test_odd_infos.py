"""What environments put into infos and observations, however odd: written, and the same in every run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ragen.files import json_text
from ragen.llm_agent.prompts.conversation import ConversationBuilder, TagPrompt, prompt_rows
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import ContextSettings


class Mute:
    """Cannot say what it is."""

    def __repr__(self) -> str:
        raise RuntimeError("speechless")


def told(info: dict[Any, Any]) -> Any:
    return json.loads(json_text({"infos": [info]}), parse_constant=refused)["infos"][0]


def refused(constant: str) -> None:
    """NaN and Infinity are no JSON."""
    raise AssertionError(constant)


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
    assert json_text({"infos": [info]}) == json_text({"infos": [info]})


def test_half_a_surrogate_pair_is_written_and_no_tokenizer_sees_it() -> None:
    assert told({"text": "x \ud800 y"}) == {"text": "x \N{REPLACEMENT CHARACTER} y"}
    prompts = {"Odd": TagPrompt("", "")}
    conversations = ConversationBuilder(ContextSettings(), prompts, {}, ControlTokens([]), "<think>")
    (row,) = prompt_rows([{"tag": "Odd", "history": [{"state": "x \ud800 y"}]}], None)
    assert "\nx \N{REPLACEMENT CHARACTER} y\n" in conversations.messages(row)[-1]["content"]
