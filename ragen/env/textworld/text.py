"""The format of a text game's observation: the game's text, then the admissible commands as in RAGEN 2026."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PROMPT = re.compile(r"\n>[^\n]*\Z")
_QUESTION = re.compile(r"\n+Would you like to RESTART.*", re.S)


def with_admissible(text: str, commands: Iterable[str]) -> str:
    """An observation followed by the admissible commands."""
    return f"{text}\n\nAdmissible actions: [{', '.join(commands)}]"


def without_trimmings(feedback: str) -> str:
    """A game's text without the banner, the prompt, the status line and the closing question."""
    text = _QUESTION.sub("", _PROMPT.sub("", feedback.rstrip()))
    lines = [line.rstrip() for line in text.splitlines()]
    banner = max((number for number, line in enumerate(lines) if "$$" in line), default=-1)
    text = "\n".join(lines[banner + 1 :]).strip()
    return re.sub(r"\n{3,}", "\n\n", text)
