"""Masks and scores where RAGEN puts them.

RAGEN counts the tokens that begin messages: one is the system message, an even number a question, an odd one an answer.
That is taken for what it is worth, also where a chat was cut or a reply has such tokens in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.context import FULL, LIMITED, ContextSettings

if TYPE_CHECKING:
    import torch

_KNOWN = (("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|eot_id|>"))


@dataclass(frozen=True)
class TurnTokens:
    """The tokens that begin and end messages.

    Attributes:
        start: Begins one.
        end: Ends one.
        has_line_break: Whether one more token follows the end of a message (ChatML).
    """

    start: int
    end: int
    has_line_break: bool

    @classmethod
    def of(cls, tokenizer: Any) -> TurnTokens:
        """Those of a tokenizer.

        Raises:
            ConfigError: It has neither ChatML's nor Llama 3's, the two that RAGEN knows.
        """
        vocabulary = tokenizer.get_vocab()
        for number, (start, end) in enumerate(_KNOWN):
            if start in vocabulary and end in vocabulary:
                return cls(vocabulary[start], vocabulary[end], number == 0)
        raise ConfigError(
            f"quirks is true, and {type(tokenizer).__name__} has none of {_KNOWN}, by which RAGEN finds replies; use "
            "quirks: false, which knows any chat template."
        )


def masks(
    ids: torch.Tensor, attention: torch.Tensor, tokens: TurnTokens, settings: ContextSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss mask and the mask of replies.

    Args:
        ids: ``(rows, tokens)``, padded on the left.
        attention: 0 where padded, of the same shape.
        tokens: What begins messages.
        settings: The window mode, and whether questions are learnt too.

    Returns:
        Both ``(rows, tokens - 1)``; bool in generation 2025, float32 in 2026.
    """
    if settings.window_mode == FULL:
        count = (ids == tokens.start).cumsum(-1)
        replies = (count % 2 == 1) & (count > 1)
        loss = replies if settings.enable_response_mask else count > 1
        kept = loss[:, :-1], replies[:, :-1]
        return tuple(mask.float() for mask in kept) if settings.generation.is_2026 else kept  # type: ignore[return-value]
    mask = attention.new_zeros((len(ids), ids.shape[1] - 1)).float()
    for row, row_ids in enumerate(ids):
        starts = (row_ids == tokens.start).nonzero()[:, 0].tolist()
        chosen = starts[-1:] if settings.window_mode == LIMITED else starts[2:3]
        if chosen and chosen[0] > 0:
            mask[row, chosen[0] - 1 :] = 1
        padding = int((attention[row] == 0).sum())
        mask[row, : max(0, padding - 1)] = 0
    return mask, mask


def score_columns(width: int, totals: Sequence[float]) -> torch.Tensor:
    """Scores in the last column: ``(rows, width)``, float32."""
    import torch

    scores = torch.zeros((len(totals), width), dtype=torch.float32)
    scores[:, -1] = torch.tensor(list(totals), dtype=torch.float32)
    return scores


def turn_score_columns(ids: torch.Tensor, tokens: TurnTokens, rewards: Sequence[Sequence[float]]) -> torch.Tensor:
    """Each turn's reward behind its reply: ``(rows, tokens - 1)``, float32.

    Args:
        ids: The rows.
        tokens: What begins and ends messages.
        rewards: Those of each row's turns, in order.
    """
    import torch

    scores = torch.zeros(ids.shape, dtype=torch.float32)
    count = (ids == tokens.start).cumsum(-1)
    for turn, column in enumerate(zip_longest(*rewards, fillvalue=0.0)):
        ends = (ids == tokens.end) & (count == 2 * turn + 3)
        ends[~ends.any(dim=-1), -1] = True
        for row, reward in enumerate(column):
            scores[row, ends[row]] = float(reward)
    return (scores.roll(1, dims=-1) if tokens.has_line_break else scores)[:, 1:]
