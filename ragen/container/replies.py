"""What stands where in a model's reply: the content of tags, the names of actions. Linear in the reply's length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

_CHINESE = re.compile("[\u4e00-\u9fff]")


def tagged(text: str, *tags: str) -> str | None:
    """The content of the last complete pair of one of these tags, over lines or not; None where there is none.

    Args:
        text: The reply.
        tags: Names, such as ``action``; upper and lower case are the same.
    """
    lowered = text.lower()
    found = [span for tag in tags if (span := _last_span(lowered, tag)) is not None]
    if not found or len(lowered) != len(text):
        return _slow_tagged(text, tags) if found else None
    start, end = max(found, key=lambda span: span[1])
    return text[start:end].strip()


def _last_span(lowered: str, tag: str) -> tuple[int, int] | None:
    end = lowered.rfind(f"</{tag}>")
    start = lowered.rfind(f"<{tag}>", 0, max(0, end))
    return None if end < 0 or start < 0 else (start + len(tag) + 2, end)


def _slow_tagged(text: str, tags: Iterable[str]) -> str | None:
    """For texts whose length changes with case: only tags in lower case count."""
    found = [span for tag in tags if (span := _last_span(text, tag)) is not None]
    return text[slice(*max(found, key=lambda span: span[1]))].strip() if found else None


def first_name(text: str, names: Mapping[str, Any]) -> Any:
    """What the first of these names in a text stands for, as a whole word; None where there is none.

    Args:
        text: Any text.
        names: In lower case.
    """
    match = _any_of(tuple(names)).search(text.lower()) if names else None
    return names[match[0]] if match else None


@lru_cache(maxsize=1024)
def _any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?![\w'])")


def thinks_first(text: str) -> bool:
    """Whether a reply has both thinking tags, which verl-agent's rules demand."""
    return "<think>" in text and "</think>" in text


def has_chinese(text: str) -> bool:
    """Whether there is a Chinese character in a text."""
    return _CHINESE.search(text) is not None
