"""Masks, scores and advantages of a training batch: which tokens are learnt, and what they earned.

Rows of trees share turns. A turn is learnt in the row of the environment that played it, and masked in all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ragen.llm_agent.config.context import FULL, ContextSettings
from ragen.llm_agent.prompting.conversation import played_turns
from ragen.llm_agent.tokens.dataproto import mask_tensor, score_tensor
from ragen.llm_agent.tokens.encoding import EncodedChat
from ragen.llm_agent.tokens.masks import Span
from ragen.llm_agent.tokens.normalization import group_of, normalize
from ragen.llm_agent.tokens.training_rows import TokenScore, TrainingRow
from ragen.llm_agent.trees.lineage import Forest, segment_advantages

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "dict[str, torch.Tensor]"


def total_reward(rollout: dict[str, Any]) -> float:
    """The sum of all the rewards that a trajectory got, also in turns that its context no longer shows."""
    return float(sum(turn.get("reward", 0.0) for turn in played_turns(rollout)))


def normalized_totals(rollouts: Sequence[dict[str, Any]], settings: ContextSettings) -> list[float]:
    """Each trajectory's total reward and penalty, normalised as the settings say.

    Args:
        rollouts: Rollout caches; those that are compared with each other need ``group_id`` or ``tag``.
        settings: Grouping and method.
    """
    totals = [total_reward(rollout) + rollout.get("penalty", 0.0) for rollout in rollouts]
    return normalized(totals, rollouts, settings)


def normalized(totals: list[float], rollouts: Sequence[dict[str, Any]], settings: ContextSettings) -> list[float]:
    """A score of each rollout, normalised as the settings say."""
    if settings.method == "identity":
        return totals
    return normalize(totals, group_of(rollouts, settings.grouping), settings.method).tolist()


def trajectory_scores(rows: Sequence[TrainingRow], totals: Sequence[float]) -> list[list[TokenScore]]:
    """Each row's score at the last token that the model wrote.

    Args:
        rows: The rows; every row of a trajectory gets the trajectory's score.
        totals: The score of each trajectory.
    """
    return [[(row.last, totals[row.row.episode])] for row in rows]


def turn_scores(rows: Sequence[TrainingRow], with_penalty: bool) -> list[list[TokenScore]]:
    """Each learnt turn's reward at its reply's last token.

    Args:
        rows: The rows.
        with_penalty: Whether the trajectory's penalty is added at its last reply. A cache has only the sum of its
            turns' penalties, so they cannot stand where they were earned.
    """
    return [_turn_scores(row, with_penalty) for row in rows]


def _turn_scores(learnt: TrainingRow, with_penalty: bool) -> list[TokenScore]:
    row, replies = learnt.row, learnt.encoded.replies
    turns = row.turns[len(row.turns) - len(replies) :]
    scores = [(end - 1, turn.get("reward", 0.0)) for (_, end), turn in zip(replies, turns, strict=True)]
    if with_penalty and row.stop == len(played_turns(row.rollout)):
        scores.append((learnt.last, row.rollout.get("penalty", 0.0)))
    return scores


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


def masks_of(rows: Sequence[TrainingRow], settings: ContextSettings, forest: Forest) -> Tensors:
    """``loss_mask``, without what another row learns, and ``response_mask``, with it; see :func:`.mask_tensor`."""
    encoded = [each.encoded for each in rows]
    own = [[span for _, span in own_replies(each, forest)] for each in rows]
    loss_mask = mask_tensor(encoded, own)
    if settings.window_mode == FULL and not settings.enable_response_mask:
        loss_mask = mask_tensor(encoded, [_own_body(chat, spans) for chat, spans in zip(encoded, own, strict=True)])
    return {"loss_mask": loss_mask, "response_mask": mask_tensor(encoded, [chat.replies for chat in encoded])}


def own_replies(row: TrainingRow, forest: Forest) -> list[tuple[int, Span]]:
    """The turns that a row learns, from 0, and their tokens, without turns that another environment has played."""
    replies, env_id = row.encoded.replies, row.row.rollout.get("env_id", -1)
    numbered = list(enumerate(replies, row.row.stop - len(replies)))
    return [each for each in numbered if not forest.has_branches or forest.owner(env_id, each[0]) == env_id]


def _own_body(chat: EncodedChat, own: Sequence[Span]) -> list[Span]:
    """A row from its first user message on, or from where the last turn that it shares ends."""
    if len(own) == len(chat.replies):
        return [(chat.body, len(chat.ids))]
    return [(chat.replies[len(chat.replies) - len(own) - 1][1], len(chat.ids))] if own else []


def advantages_of(
    rows: Sequence[TrainingRow], rollouts: Sequence[dict[str, Any]], settings: ContextSettings, by_std: bool
) -> torch.Tensor:
    """The advantage of each token that is learnt, from its segment's siblings; see :mod:`ragen.llm_agent.trees`.

    Args:
        rows: The rows.
        rollouts: The rollout caches that they are of.
        settings: How scores are normalised first, if at all.
        by_std: Whether advantages are divided by the siblings' standard deviation.

    Returns:
        float32 ``(rows, tokens - 1)``, aligned with ``responses``; 0 elsewhere.
    """
    forest = Forest.of(rollouts)
    scores = dict(zip((each["env_id"] for each in rollouts), normalized_totals(rollouts, settings), strict=True))
    found = segment_advantages(forest, scores, by_std)
    placed = [
        [
            (token, found[forest.segment_of(each.row.rollout["env_id"], turn)])
            for turn, span in own_replies(each, forest)
            for token in range(*span)
        ]
        for each in rows
    ]
    return score_tensor([each.encoded for each in rows], placed)


def reply_lengths(rows: Sequence[TrainingRow]) -> Mapping[str, float]:
    """How many reply tokens a row has: ``response_length`` in all, and for each tag."""
    lengths: dict[str, list[int]] = {}
    for each in rows:
        lengths.setdefault(each.row.rollout["tag"], []).append(each.length)
    metrics = {f"{tag}/response_length": sum(sizes) / len(sizes) for tag, sizes in lengths.items()}
    return metrics | {"response_length": sum(sum(sizes) for sizes in lengths.values()) / len(rows)}
