"""Actions for play without a model: examples of valid ones, texts for any environment, and odd ones.

`ragen check`, the scripted policies and `ragen suite` choose among these.
"""

from __future__ import annotations

import re
from typing import Any

from envlanes.returned import wrong

TEXTS = ("1", "a", "(1 + 2) * 3", "search[red shoes]", "I do not know.", "")
"""For environments that take texts, and of which no example is known."""

ODD = ("", "fly", "Up Down", "<answer>Up</answer>", "search[lamp]", "1 + 1", "\u2191")
"""That no environment expects."""

_ANSWER = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.S)


def answers_in(text: str) -> list[str]:
    """The contents of a text's ``<answer>`` tags."""
    return _ANSWER.findall(text)


def named_in(instruction: str) -> tuple[str, ...]:
    """The actions of an instruction's examples of an answer, ``<answer>first || second</answer>``."""
    return tuple(filter(None, map(str.strip, "||".join(answers_in(instruction)).split("||"))))


def gives_examples(env_class: Any) -> bool:
    """Whether a class has an ``example_action`` of its own."""
    owner = next((each for each in getattr(env_class, "__mro__", ()) if "example_action" in vars(each)), None)
    return owner is not None and owner.__module__ != "ragen.env.base"


def checked_example(env_class: Any, example: Any) -> str:
    """Check the result of an ``example_action``.

    Raises:
        ReturnError: It is no text.
    """
    if not isinstance(example, str):
        raise wrong(env_class, "example_action", example, "text")
    return example
