"""How an adventure's state is written: the game's own words, then the commands that can be carried out.

As RAGEN 2026 writes them for its ``alfworld``, so what reads one reads the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LISTED = re.compile(r"^Admissible actions: \[(.*)\]$", re.M)
_PROMPT = re.compile(r"\n>[^\n]*\Z")
_QUESTION = re.compile(r"\n+Would you like to RESTART.*", re.S)


def with_admissible(text: str, commands: Iterable[str]) -> str:
    """A state with the commands that can be carried out."""
    return f"{text}\n\nAdmissible actions: [{', '.join(commands)}]"


def admissible_in(text: str) -> list[str]:
    """The commands that a state lists; none if it lists none."""
    found = _LISTED.findall(text)
    return found[-1].split(", ") if found and found[-1] else []


def without_trimmings(feedback: str) -> str:
    """What a game of TextWorld says, without its banner, its prompt, its status line and its closing question."""
    text = _QUESTION.sub("", _PROMPT.sub("", feedback.rstrip()))
    lines = [line.rstrip() for line in text.splitlines()]
    banner = max((number for number, line in enumerate(lines) if "$$" in line), default=-1)
    text = "\n".join(lines[banner + 1 :]).strip()
    return re.sub(r"\n{3,}", "\n\n", text)
