"""Reads a chat as a player would: the state, the meaning of its symbols, the available actions and how many are left.

The patterns match our own templates in :mod:`ragen.llm_agent.prompts.templates`; in a chat of another format the
whole last message is the state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragen.tools.examples import named_in

_STATE = re.compile(r"Turn \d+:\nState:\n(.*?)\n(?:You have (\d+) actions left\. )?Always output: ", re.S)
_FIRST_TURN = re.compile(r"(?:^|\n)(?:---\n)?Turn \d+:\nState:\n")
_SYMBOLS = re.compile(r"^Symbols in the state: (.+)$", re.M)
_SYMBOL = re.compile(r"(?:^|, )(\S) is (.*?)(?=, \S is |$)")
_ACTIONS = re.compile(r"^Available actions: (.+?)\. To take several in a row", re.M)


@dataclass(frozen=True)
class Prompt:
    """The content of a chat.

    Attributes:
        state: The newest state.
        instructions: The text before the first state.
        symbols: Grid symbol to meaning, if the chat explains them.
        actions: The names of the allowed actions, if the chat lists them; else those of its examples of an answer.
        limit: Maximum number of actions of the answer.
        chat: The messages to the player that the chat still contains.
    """

    state: str
    instructions: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    limit: int = 1
    chat: str = ""


def read_prompt(messages: Sequence[Mapping[str, Any]], max_actions: int) -> Prompt:
    """Read a chat.

    Args:
        messages: The chat in OpenAI form; the newest state is the last one of its last message.
        max_actions: Maximum number of actions of a reply, whatever number the chat says is left.
    """
    last = text_of(messages[-1])
    chat = "\n".join(text_of(message) for message in messages if message["role"] != "assistant")
    state, left = _newest(last)
    named, instructions = _ACTIONS.search(chat), _FIRST_TURN.split(chat, maxsplit=1)[0]
    return Prompt(
        state=state,
        instructions=instructions,
        symbols=read_symbols(chat),
        actions=tuple(filter(None, map(str.strip, named[1].split(",")))) if named else named_in(instructions),
        limit=max(1, min(max_actions, int(left) if left else max_actions)),
        chat=chat,
    )


def _newest(text: str) -> tuple[str, str]:
    """The newest state of a message and its number of actions left; the whole text of a message in another format."""
    *_, (state, left) = [("", ""), *_STATE.findall(text.rsplit("\n---\n", 1)[-1])]
    return state or text, left


def read_symbols(text: str) -> dict[str, str]:
    """Grid symbol to meaning, for the symbols that the text explains."""
    found = _SYMBOLS.search(text)
    return dict(_SYMBOL.findall(found[1])) if found else {}


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, also if its content is a list of parts."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
