"""Log-probabilities, entropies and values of the tokens that a model chose; all other tokens get 0."""

from __future__ import annotations

from collections.abc import Callable

from ragen.extras import needs
from ragen.training.shared_prompts import hidden_of_chosen
from ragen.training.tiny_model import ValueModel
from ragen.training.training_batch import TrainingBatch

with needs("train", "`ragen train`"):
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel


def log_probs_and_entropies(
    model: PreTrainedModel, batch: TrainingBatch, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Of every chosen token its log-probability, and the entropy of what it was drawn from.

    The output layer is computed for the chosen tokens alone: with prompts longer than replies that saves most of it.

    Args:
        model: A causal language model.
        batch: The rows.
        temperature: Divides the logits, as it did when the tokens were drawn.

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


def values(critic: ValueModel, batch: TrainingBatch) -> Tensor:
    """The critic's value before every chosen token, float32 ``(rows, tokens - 1)``."""
    chosen = batch.response_mask.bool()
    return _placed(critic(hidden_of_chosen(critic.body, batch)).float(), chosen)


@torch.no_grad()
def without_gradient(compute: Callable[[TrainingBatch], Tensor], batch: TrainingBatch, max_tokens: int) -> Tensor:
    """A tensor ``(rows, tokens - 1)`` of the whole batch, computed micro-batch by micro-batch.

    Args:
        compute: Computes it for some rows.
        batch: All rows.
        max_tokens: The most tokens of a micro-batch.
    """
    whole = torch.zeros_like(batch.response_mask)
    for rows in batch.micro_batches(range(len(batch)), max_tokens):
        part = compute(batch.select(rows))
        whole[torch.tensor(rows), whole.shape[1] - part.shape[1] :] = part
    return whole


def _placed(found: Tensor, chosen: Tensor) -> Tensor:
    return torch.zeros(chosen.shape, dtype=found.dtype).masked_scatter(chosen, found)
