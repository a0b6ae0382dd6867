"""Log-probabilities and entropies of the tokens that a model sampled; all other tokens get 0.

Hidden states of prompts that rows share are computed only once.

The members of a group begin with the same prompt, and prompts are longer than replies. Rows are split before the last
token of their first prompt; the part before is computed once for all rows that share it, and the rest of each row
attends to its keys and values::

    a b c|d E F           a b c -.->  d E F
    a b c|d G h I J              '->  d G h I J
    k l|m N               k l   --->  m N

The result, and its gradient, are those of whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragen.extras import needs
from ragen.training.training_batch import TrainingBatch, left_padded

with needs("train", "`ragen train`"):
    import torch
    from torch import Tensor
    from transformers import DynamicCache, PreTrainedModel


# Prompts that rows share


@dataclass(frozen=True)
class SplitRows:
    """Rows split into shared beginnings and the rest of each.

    Attributes:
        beginnings: Distinct lists of tokens.
        owners: The index of each row's beginning.
        rests: The other tokens of each row without the last one, from which nothing is predicted.
        chosen: For each token of the rests, whether the next token was sampled.
    """

    beginnings: list[list[int]]
    owners: list[int]
    rests: list[list[int]]
    chosen: list[list[bool]]

    @classmethod
    def of(cls, batch: TrainingBatch) -> SplitRows:
        """The rows of a batch."""
        beginnings = [tuple(batch.first_prompt(row)[:-1]) for row in range(len(batch))]
        places = {beginning: place for place, beginning in enumerate(dict.fromkeys(beginnings))}
        left = [length - 1 - len(beginning) for length, beginning in zip(batch.lengths, beginnings, strict=True)]
        ids, chosen = batch.input_ids.tolist(), batch.response_mask.bool().tolist()
        return cls(
            beginnings=[list(beginning) for beginning in places],
            owners=[places[beginning] for beginning in beginnings],
            rests=[row[len(row) - 1 - count : -1] for row, count in zip(ids, left, strict=True)],
            chosen=[row[len(row) - count :] for row, count in zip(chosen, left, strict=True)],
        )


def hidden_of_chosen(body: Any, batch: TrainingBatch) -> Tensor:
    """The last layer's output before every sampled token, ``(sampled tokens, width)``, row by row.

    Args:
        body: A decoder without its output layer.
        batch: The rows.
    """
    split = SplitRows.of(batch)
    cache, seen = _read(body, split.beginnings)
    cache.batch_select_indices(torch.tensor(split.owners))
    seen = seen[split.owners]
    lengths = seen.sum(-1)
    ids, here, chosen = _right_padded(split.rests), _right_padded(_ones(split.rests)), _right_padded(split.chosen)
    hidden = body(
        input_ids=ids,
        attention_mask=torch.cat([seen, here], dim=1),
        position_ids=lengths[:, None] + torch.arange(ids.shape[1]),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return hidden[chosen.bool()]


def _read(body: Any, beginnings: Sequence[Sequence[int]]) -> tuple[DynamicCache, Tensor]:
    """Keys and values of beginnings, and their attention mask, int64 ``(beginnings, tokens)``."""
    ids, seen = left_padded(beginnings, 0, torch.int64), left_padded(_ones(beginnings), 0, torch.int64)
    cache = DynamicCache()
    if ids.shape[1]:
        positions = (seen.cumsum(-1) - 1).clamp(min=0)
        body(input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True)
    return cache, seen


def _ones(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[1] * len(row) for row in rows]


def _right_padded(rows: Sequence[Sequence[int]]) -> Tensor:
    tensor = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64)
    for place, row in enumerate(rows):
        tensor[place, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return tensor


# Log-probabilities and entropies


def log_probs_and_entropies(
    model: PreTrainedModel, batch: TrainingBatch, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The log-probability of every sampled token, and the entropy of its distribution.

    The output layer is computed only for sampled tokens, which saves most of its cost if prompts are longer than
    replies.

    Args:
        model: A causal language model.
        batch: The rows.
        temperature: The sampling temperature, which divides the logits.

    Returns:
        Two float32 tensors ``(rows, tokens - 1)``.
    """
    chosen = batch.response_mask.bool()
    hidden = hidden_of_chosen(model.get_decoder(), batch)
    logits = model.get_output_embeddings()(hidden).float() / temperature
    scores = torch.log_softmax(logits, dim=-1)
    picked = scores.gather(-1, batch.input_ids[:, 1:][chosen][:, None])[:, 0]
    entropies = -(scores.exp() * scores).sum(-1)
    return _placed(picked, chosen), _placed(entropies, chosen)


def _placed(found: Tensor, chosen: Tensor) -> Tensor:
    return torch.zeros(chosen.shape, dtype=found.dtype).masked_scatter(chosen, found)
