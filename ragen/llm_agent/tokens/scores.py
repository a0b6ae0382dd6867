"""Rewards to scores at tokens: one at the end of a trajectory, or one at the end of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.prompting.conversation import played_turns
from ragen.llm_agent.tokens.normalization import group_of, normalize
from ragen.llm_agent.tokens.training_rows import TokenScore, TrainingRow


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
