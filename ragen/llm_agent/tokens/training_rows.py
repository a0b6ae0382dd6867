"""The rows of a training batch: in the tokens that were seen and sampled, or, where those are unknown, in text.

A chat that is written once more and tokenised need not give the tokens that were sampled: a reply is shown tidied up,
a template leaves out earlier thoughts, text has many spellings in tokens. A trainer would then compute probabilities
that no reply was drawn with. So where all of a trajectory's exchanges are known, its rows are made of them alone::

    turn 1   shown a b c               drew d e      The second prompt goes on from all that was shown and drawn:
    turn 2   shown a b c d e f g h     drew i j      one row   a b c d e f g h i j   for both replies
                                                     mask      . . . x x . . . x x

    turn 2   shown a b c D f g h       drew i j      It shows the first reply otherwise: a row of its own
                                                     a b c d e     a b c D f g h i j
                                                     . . . x x     . . . . . . . x x

Every reply is learnt once, after the very prompt that it answered. Otherwise the chat's text is tokenised; then a tag
that the prompt had opened and the end of a turn that a reply did not come to are left out of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ragen.llm_agent.prompting.chat_template import Message
from ragen.llm_agent.prompting.conversation import Row, images_of
from ragen.llm_agent.tokens.encoding import EncodedChat
from ragen.llm_agent.tokens.masks import Span
from ragen.llm_agent.tokens.sampled_tokens import Exchange, RawReply, raw_reply

TokenScore = tuple[int, float]


@dataclass(frozen=True)
class TrainingRow:
    """One row of a training batch.

    Attributes:
        row: Whose it is; its last turns are those whose replies are learnt.
        chat: The row as messages.
        encoded: The row as tokens; ``replies`` are the tokens to learn, for each turn that is learnt.
        log_probs: The log-probabilities of those tokens, as sampled; None where unknown.
    """

    row: Row
    chat: list[Message]
    encoded: EncodedChat
    log_probs: list[TokenScore] | None = None

    @property
    def length(self) -> int:
        """How many tokens are learnt."""
        return sum(end - start for start, end in self.encoded.replies)

    @property
    def last(self) -> int:
        """The last token that is learnt; where none is, the last of all."""
        ends = [end for start, end in self.encoded.replies if end > start]
        return (ends[-1] if ends else len(self.encoded.ids)) - 1


def sampled_rows(row: Row, first: int) -> list[tuple[Row, list[Exchange]]] | None:
    """A trajectory's turns in as few rows as can be, each turn after the very prompt that it answered.

    Args:
        row: Ends with the last turn to learn.
        first: The first turn to learn, from 0.

    Returns:
        Rows of the turns to learn and their exchanges; None if there are no turns, or tokens of one are unknown.
        Images are not kept in exchanges, so turns with images count as unknown.
    """
    found = [raw_reply(turn).exchange for turn in row.rollout["history"][max(0, first) : row.stop]]
    known = [each for each in found if each is not None and each.has_tokens and not images_of(each.messages)]
    if not known or len(known) < len(found):
        return None
    return [
        (replace(row, start=first + start, stop=first + stop), known[start:stop]) for start, stop in stretches(known)
    ]


def stretches(exchanges: Sequence[Exchange]) -> list[Span]:
    """The longest runs of exchanges in which every prompt begins with all that was shown and drawn before."""
    runs: list[Span] = []
    said: list[int] = []
    for turn, exchange in enumerate(exchanges):
        prompt, reply = _tokens(exchange)
        goes_on = bool(runs) and prompt[: len(said)] == said
        runs[len(runs) - goes_on :] = [(runs[-1][0] if goes_on else turn, turn + 1)]
        said = prompt + reply
    return runs


def exchanged_row(row: Row, exchanges: Sequence[Exchange], reply: Message, body: int = 0) -> TrainingRow:
    """The row of exchanges of which each goes on from the one before.

    Args:
        row: Their turns.
        exchanges: One for each turn.
        reply: The last reply as a message.
        body: The token with which the first user message begins.
    """
    spans = [(len(prompt), len(prompt) + len(said)) for prompt, said in map(_tokens, exchanges)]
    prompt, said = _tokens(exchanges[-1])
    chat = [*exchanges[-1].messages, reply]
    return TrainingRow(row, chat, EncodedChat(prompt + said, spans, body=body), _log_probs(exchanges, spans))


def _log_probs(exchanges: Sequence[Exchange], spans: Sequence[Span]) -> list[TokenScore] | None:
    found: list[TokenScore] = []
    for exchange, (start, end) in zip(exchanges, spans, strict=True):
        values = list(exchange.log_probs or ())
        if len(values) != end - start:
            return None
        found += zip(range(start, end), map(float, values), strict=True)
    return found


def _tokens(exchange: Exchange) -> tuple[list[int], list[int]]:
    return list(exchange.prompt_ids or ()), list(exchange.reply_ids or ())


def written_row(row: Row, chat: list[Message], encoded: EncodedChat, count: int, as_shown: bool = False) -> TrainingRow:
    """The row of a chat's text.

    Args:
        row: The turns that the chat shows.
        chat: The messages.
        encoded: Their tokens, with all replies marked.
        count: How many replies are learnt: the last ones.
        as_shown: Whether a reply's tag and end are learnt whoever wrote them.
    """
    replies, inner = encoded.replies[-count:], encoded.inner[-count:]
    if not as_shown:
        turns = row.turns[len(row.turns) - len(replies) :]
        replies = [_written(raw_reply(turn), *spans) for turn, *spans in zip(turns, replies, inner, strict=True)]
    return TrainingRow(row, chat, replace(encoded, replies=replies))


def _written(raw: RawReply, whole: Span, inner: Span) -> Span:
    """What the model itself wrote of a reply, as far as that is known."""
    cut_off = raw.exchange is not None and raw.exchange.cut_off
    start, end = inner[0] if raw.tag_added else whole[0], inner[1] if cut_off else whole[1]
    return start, max(start, end)
