"""Keeps the tokenizer's control tokens out of text that people, environments and models wrote.

``<|im_start|>`` typed by a model would become a real control token when the text is tokenised again, and a chat could
then say things in another role's name. From the model's own text such strings are removed, in all other text they are
broken by a space, so that they can still be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

ALWAYS = ("<|im_start|>", "<|im_end|>")
SHORTEST = 3  # a padding token that is plain punctuation, such as "!", is no control token


class ControlTokens:
    """The strings that a tokenizer reads as control tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Take these strings for control tokens."""
        self.tokens = frozenset(token for token in tokens if len(token.strip()) >= SHORTEST)
        longest_first = sorted(self.tokens, key=lambda token: (-len(token), token))
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @classmethod
    def of(cls, tokenizer: Any) -> ControlTokens:
        """The control tokens of a tokenizer: those it marks as special, and ChatML's own in any case."""
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = [token.content for token in added if token.special]
        return cls([*ALWAYS, *special, *tokenizer.all_special_tokens])

    def plus(self, *tokens: str) -> ControlTokens:
        """The same and these."""
        return ControlTokens([*self.tokens, *tokens])

    def remove(self, text: str) -> str:
        """The text without control tokens, also without those that come about by removing others."""
        if self.pattern.search(text):
            text = self.pattern.sub(" ", self.pattern.sub("", text))
        return text

    def defuse(self, text: str) -> str:
        """The text with every control token broken after its first character."""
        return self.pattern.sub(lambda found: f"{found.group()[0]} {found.group()[1:]}", text)
