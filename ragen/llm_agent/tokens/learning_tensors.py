"""What a training batch says of its tokens: which are learnt, and what they earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ragen.llm_agent.config.context import FULL, ContextSettings
from ragen.llm_agent.tokens.dataproto import mask_tensor, score_tensor
from ragen.llm_agent.tokens.encoding import EncodedChat
from ragen.llm_agent.tokens.scores import normalized_totals, total_reward, trajectory_scores, turn_scores
from ragen.llm_agent.tokens.training_rows import TrainingRow

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "dict[str, torch.Tensor]"


def scores_of(rows: Sequence[TrainingRow], rollouts: Sequence[dict[str, Any]], settings: ContextSettings) -> Tensors:
    """``rm_scores`` (normalised, penalty included) and ``original_rm_scores``; see :func:`.score_tensor`."""
    if settings.use_turn_scores:
        final, original = (turn_scores(rows, penalty) for penalty in (True, False))
    else:
        final = trajectory_scores(rows, normalized_totals(rollouts, settings))
        original = trajectory_scores(rows, [total_reward(rollout) for rollout in rollouts])
    if settings.generation.is_2026:  # whose filter of groups looks at scores with penalties
        original = final
    encoded = [each.encoded for each in rows]
    return {"rm_scores": score_tensor(encoded, final), "original_rm_scores": score_tensor(encoded, original)}


def masks_of(encoded: Sequence[EncodedChat], settings: ContextSettings) -> Tensors:
    """``loss_mask`` and ``response_mask``; see :func:`.mask_tensor`."""
    response_mask = loss_mask = mask_tensor(encoded, [chat.replies for chat in encoded])
    if settings.window_mode == FULL and not settings.enable_response_mask:
        loss_mask = mask_tensor(encoded, [[(chat.body, len(chat.ids))] for chat in encoded])
    return {"loss_mask": loss_mask.clone(), "response_mask": response_mask}


def reply_lengths(rows: Sequence[TrainingRow]) -> Mapping[str, float]:
    """How many reply tokens a row has: ``response_length`` in all, and for each tag."""
    lengths: dict[str, list[int]] = {}
    for each in rows:
        lengths.setdefault(each.row.rollout["tag"], []).append(each.length)
    metrics = {f"{tag}/response_length": sum(sizes) / len(sizes) for tag, sizes in lengths.items()}
    return metrics | {"response_length": sum(sum(sizes) for sizes in lengths.values()) / len(rows)}
