"""The rows of a training batch, with their masks and scores.

Rows consist of the tokens of prompts and replies if these are known, and otherwise of tokenized text. Tokenizing a chat
again may yield other tokens than those sampled: replies are shown cleaned, a template may omit earlier thoughts, and
the same text has many tokenizations. The trainer would then compute probabilities of tokens that were never sampled.
If all exchanges of a trajectory are known, its rows are therefore built from them::

    turn 1   prompt a b c               reply d e    The second prompt extends the first prompt and reply:
    turn 2   prompt a b c d e f g h     reply i j    one row   a b c d e f g h i j   for both replies
                                                     mask      . . . x x . . . x x

    turn 2   prompt a b c D f g h       reply i j    It shows the first reply differently: two rows
                                                     a b c d e     a b c D f g h i j
                                                     . . . x x     . . . . . . . x x

The loss includes every reply once, after exactly the prompt that it answered. If tokens are unknown, the chat's text is
tokenized, as in RAGEN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ragen.llm_agent.batches.dataproto import Layout, TokenExchange, TokenScore, raw_reply
from ragen.llm_agent.batches.encoding import EncodedChat, Span
from ragen.llm_agent.batches.normalization import group_of, normalize
from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.conversation import Row, images_of, played_turns
from ragen.llm_agent.prompts.settings import FULL, ContextSettings
from ragen.statistics import mean
from ragen.validity import env_error, is_valid, with_signal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrainingRow:
    """One row of a training batch.

    Attributes:
        row: Its turns; the loss is on the replies of the last of them.
        chat: The row as messages.
        encoded: The row as tokens; ``replies`` are the spans with loss, one per turn.
        log_probs: The log-probabilities of these tokens when they were sampled; None if unknown.
    """

    row: Row
    chat: list[Message]
    encoded: EncodedChat
    log_probs: list[TokenScore] | None = None

    @property
    def length(self) -> int:
        """Number of tokens with loss."""
        return sum(end - start for start, end in self.encoded.replies)

    @property
    def last(self) -> int:
        """The index of the last token with loss; without any, of the last token."""
        ends = [end for start, end in self.encoded.replies if end > start]
        return (ends[-1] if ends else len(self.encoded.ids)) - 1


def sampled_rows(row: Row, first: int) -> list[tuple[Row, list[TokenExchange]]] | None:
    """A trajectory's turns in as few rows as possible, with each reply after exactly the prompt that it answered.

    Args:
        row: Ends with the last turn to train on.
        first: The first turn to train on, from 0.

    Returns:
        Rows of these turns with their exchanges; None if there are no turns, or the tokens of one are unknown.
        Exchanges do not keep images, so the tokens of turns with images count as unknown.
    """
    found = [raw_reply(turn).exchange for turn in row.rollout["history"][max(0, first) : row.stop]]
    known = [each for each in found if each is not None and each.has_tokens and not images_of(each.messages)]
    if not known or len(known) < len(found):
        return None
    return [
        (replace(row, start=first + start, stop=first + stop), known[start:stop]) for start, stop in stretches(known)
    ]


def stretches(exchanges: Sequence[TokenExchange]) -> list[Span]:
    """The longest runs of exchanges in which every prompt begins with the previous prompt and reply."""
    runs: list[Span] = []
    said: list[int] = []
    for turn, exchange in enumerate(exchanges):
        prompt, reply = _tokens(exchange)
        goes_on = bool(runs) and prompt[: len(said)] == said
        runs[len(runs) - goes_on :] = [(runs[-1][0] if goes_on else turn, turn + 1)]
        said = prompt + reply
    return runs


def exchanged_row(
    row: Row, exchanges: Sequence[TokenExchange], reply: Message, shown: EncodedChat | None = None
) -> TrainingRow:
    """The row of exchanges that each extend the previous one.

    Args:
        row: Their turns.
        exchanges: One for each turn.
        reply: The last reply as a message.
        shown: A chat with the images of the prompts; None without images.
    """
    spans = [(len(prompt), len(prompt) + len(said)) for prompt, said in map(_tokens, exchanges)]
    prompt, said = _tokens(exchanges[-1])
    chat = [*exchanges[-1].messages, reply]
    encoded = replace(shown or EncodedChat([]), ids=prompt + said, replies=spans)
    return TrainingRow(row, chat, encoded, _log_probs(exchanges, spans))


def _log_probs(exchanges: Sequence[TokenExchange], spans: Sequence[Span]) -> list[TokenScore] | None:
    found: list[TokenScore] = []
    for exchange, (start, end) in zip(exchanges, spans, strict=True):
        values = list(exchange.log_probs or ())
        if len(values) != end - start:
            return None
        found += zip(range(start, end), map(float, values), strict=True)
    return found


def _tokens(exchange: TokenExchange) -> tuple[list[int], list[int]]:
    return list(exchange.prompt_ids or ()), list(exchange.reply_ids or ())


# Masks and scores


Tensors: TypeAlias = "dict[str, torch.Tensor]"


def total_reward(rollout: dict[str, Any]) -> float:
    """The sum of a trajectory's rewards, including turns that its context no longer shows."""
    return float(sum(turn.get("reward", 0.0) for turn in played_turns(rollout)))


def normalized(totals: list[float], rollouts: Sequence[dict[str, Any]], settings: ContextSettings) -> list[float]:
    """The scores of rollouts, normalized among the valid ones according to the settings; see :func:`with_stand_ins`."""
    found = list(totals)
    if settings.method != "identity":
        valid = [place for place, rollout in enumerate(rollouts) if is_valid(rollout)]
        groups = group_of([rollouts[place] for place in valid], settings.grouping)
        scores = normalize([totals[place] for place in valid], groups, settings.method).tolist()
        for place, score in zip(valid, scores, strict=True):
            found[place] = score
    return with_stand_ins(found, rollouts)


def with_stand_ins(scores: Sequence[float], rollouts: Sequence[Mapping[str, Any]]) -> list[float]:
    """Scores in which a failed trajectory has the mean of its group's valid ones, or 0 if there are none.

    Trainers that take a group's scores by position then see no spread that the failure made.
    """
    known: dict[Any, list[float]] = {}
    for score, rollout in zip(scores, rollouts, strict=True):
        if is_valid(rollout):
            known.setdefault(rollout.get("group_id"), []).append(score)
    return [
        score if is_valid(rollout) else mean(known.get(rollout.get("group_id"), []))
        for score, rollout in zip(scores, rollouts, strict=True)
    ]


def signal_of(rollouts: Sequence[Mapping[str, Any]], settings: ContextSettings) -> list[bool]:
    """The trajectories that are learned from; see :func:`ragen.validity.with_signal`."""
    groups = [each.get("group_id", ("alone", place)) for place, each in enumerate(rollouts)]
    return with_signal(groups, [env_error(each) for each in rollouts], settings.failed_trajectories).tolist()


def _turn_scores(learnt: TrainingRow, with_penalty: bool) -> list[TokenScore]:
    row, replies = learnt.row, learnt.encoded.replies
    turns = row.turns[len(row.turns) - len(replies) :]
    scores = [(end - 1, turn.get("reward", 0.0)) for (_, end), turn in zip(replies, turns, strict=True)]
    if with_penalty and row.stop == len(played_turns(row.rollout)):
        scores.append((learnt.last, row.rollout.get("penalty", 0.0)))
    return scores


def scores_of(
    rows: Sequence[TrainingRow], rollouts: Sequence[dict[str, Any]], settings: ContextSettings, layout: Layout
) -> Tensors:
    """``rm_scores`` (normalized, penalty included) and ``original_rm_scores``; see :meth:`.Layout.values`.

    A trajectory's score is at the last token with loss of each of its rows. Scores of turns are at the last tokens of
    their replies, and the penalty at the last one: a cache has only the sum of its turns' penalties, so they cannot be
    assigned to turns. A failed trajectory has its stand-in at the end.
    """

    def scored(with_penalty: bool) -> list[list[TokenScore]]:
        totals = [total_reward(each) + with_penalty * each.get("penalty", 0.0) for each in rollouts]
        scores = normalized(totals, rollouts, settings) if with_penalty else with_stand_ins(totals, rollouts)
        at_end = [[(row.last, scores[row.row.episode])] for row in rows]
        if not settings.use_turn_scores:
            return at_end
        return [
            _turn_scores(row, with_penalty)
            if is_valid(row.row.rollout)
            else end * (row.row.stop == len(played_turns(row.row.rollout)))
            for row, end in zip(rows, at_end, strict=True)
        ]

    return {"rm_scores": layout.values(scored(True)), "original_rm_scores": layout.values(scored(False))}


def masks_of(rows: Sequence[TrainingRow], settings: ContextSettings, signal: Sequence[bool], layout: Layout) -> Tensors:
    """``loss_mask`` and ``response_mask``, both 0 for a trajectory that is not learned from.

    Args:
        rows: The rows.
        settings: The parts of the loss.
        signal: Whether each trajectory is learned from.
        layout: The places of tokens.
    """
    replies = [each.encoded.replies for each in rows]
    learnt = replies
    if settings.window_mode == FULL and not settings.enable_response_mask:
        learnt = [[(each.encoded.body, len(each.encoded.ids))] for each in rows]
    return {
        name: layout.mask([s if signal[each.row.episode] else [] for each, s in zip(rows, found, strict=True)])
        for name, found in (("loss_mask", learnt), ("response_mask", replies))
    }


def reply_lengths(rows: Sequence[TrainingRow]) -> Mapping[str, float]:
    """The mean number of reply tokens of a valid row: ``response_length`` over all, and for each tag."""
    lengths: dict[str, list[int]] = {}
    for each in (row for row in rows if is_valid(row.row.rollout)):
        lengths.setdefault(each.row.rollout["tag"], []).append(each.length)
    metrics = {f"{tag}/response_length": sum(sizes) / len(sizes) for tag, sizes in lengths.items()}
    return metrics | {"response_length": mean([size for sizes in lengths.values() for size in sizes])}
