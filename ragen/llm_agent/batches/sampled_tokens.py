"""Prompts and replies as tokens, passed from the actor to the training batch.

An actor that knows the tokens adds an :class:`Exchange` for every prompt as the column ``exchanges`` of its output. The
context manager attaches it to the reply's raw text, a :class:`RawReply`. It therefore follows the text: through the
environment manager into the history, and into copies of the cache. The history keeps RAGEN's format, and no second
record of tokens is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ragen.llm_agent.prompts.chat_template import Message


@dataclass(frozen=True)
class Exchange:
    """A prompt and its reply as tokens.

    Attributes:
        messages: The prompt as a chat; empty if its tokens are unknown.
        prompt_ids: The prompt's tokens; None if unknown.
        reply_ids: The sampled tokens, including the one that ended the turn, if sampled; None if unknown.
        log_probs: The log-probability of each of ``reply_ids`` when it was sampled; None if unknown.
        cut_off: Whether the reply reached its length limit before the model ended it.
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
        """An exchange with known tokens, stored in arrays to save memory: a history keeps all its prompts."""
        values = None if log_probs is None else array("d", log_probs)
        return cls(messages, array("i", prompt_ids), array("i", reply_ids), values, cut_off)

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of the prompt and of the reply are known."""
        return self.prompt_ids is not None and self.reply_ids is not None


class RawReply(str):
    """A reply's raw text, ``llm_raw_response`` of a turn, with its tokens if known.

    Attributes:
        exchange: The prompt and the reply as tokens; None if the actor did not return them.
        tag_added: Whether its first tag is from the prompt and was not written by the model.
    """

    __slots__ = ("exchange", "tag_added")
    exchange: Exchange | None
    tag_added: bool

    def __new__(cls, text: str, exchange: Exchange | None = None, tag_added: bool = False) -> Self:
        """Attach the exchange to the text."""
        reply = super().__new__(cls, text)
        reply.exchange, reply.tag_added = exchange, tag_added
        return reply


def raw_reply(turn: dict[str, Any]) -> RawReply:
    """A played turn's raw reply; for a plain string, one without an exchange."""
    raw = turn.get("llm_raw_response", "")
    return raw if isinstance(raw, RawReply) else RawReply(str(raw))
