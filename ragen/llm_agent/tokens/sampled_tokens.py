"""Prompts and replies as tokens, on the way from the actor to the training batch.

An actor that knows tokens puts an :class:`Exchange` for every prompt into the column ``exchanges`` of its answer. The
context manager hands it on inside the reply's raw text, a :class:`RawReply`. So it goes wherever the text goes: through
the environment manager into the history, out of it again where a turn is taken back, into copies of the cache. A
history has RAGEN's shape, and no second record of tokens is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ragen.llm_agent.prompting.chat_template import Message


@dataclass(frozen=True)
class Exchange:
    """A prompt and its reply as the model saw and drew them.

    Attributes:
        messages: The prompt as a chat; empty where its tokens are unknown.
        prompt_ids: Its tokens; None where unknown.
        reply_ids: The tokens that were sampled, the one that ended the turn included if it was; None where unknown.
        log_probs: The log-probability of each of ``reply_ids``, as sampled; None where unknown.
        cut_off: Whether the reply came to its end because it was too long, and not because the model ended it.
    """

    messages: Sequence[Message] = ()
    prompt_ids: Sequence[int] | None = None
    reply_ids: Sequence[int] | None = None
    log_probs: Sequence[float] | None = None
    cut_off: bool = False

    @classmethod
    def of_tokens(
        cls,
        messages: Sequence[Message],
        prompt_ids: Sequence[int],
        reply_ids: Sequence[int],
        log_probs: Sequence[float] | None,
        cut_off: bool,
    ) -> Self:
        """One whose tokens are known. They are kept in arrays: a history holds all its prompts, and lists are big."""
        values = None if log_probs is None else array("d", log_probs)
        return cls(messages, array("i", prompt_ids), array("i", reply_ids), values, cut_off)

    @property
    def has_tokens(self) -> bool:
        """Whether it is known which tokens were seen and drawn."""
        return self.prompt_ids is not None and self.reply_ids is not None


class RawReply(str):
    """A reply's raw text, ``llm_raw_response`` of a turn, and what is known of how it came about.

    Attributes:
        exchange: What was asked and answered; None where the actor did not say.
        tag_added: Whether the tag that it begins with stood in the prompt, and the model did not write it.
    """

    __slots__ = ("exchange", "tag_added")
    exchange: Exchange | None
    tag_added: bool

    def __new__(cls, text: str, exchange: Exchange | None = None, tag_added: bool = False) -> Self:
        """Tie a text to where it comes from."""
        reply = super().__new__(cls, text)
        reply.exchange, reply.tag_added = exchange, tag_added
        return reply


def raw_reply(turn: dict[str, Any]) -> RawReply:
    """A played turn's raw reply; where it is a plain text, nothing is known of it."""
    raw = turn.get("llm_raw_response", "")
    return raw if isinstance(raw, RawReply) else RawReply(str(raw))
