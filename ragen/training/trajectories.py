"""What is trained on: trajectories as rows of tokens, in groups that started alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from verl import DataProto


@dataclass(frozen=True)
class TokenRow:
    """Tokens, and which of them the model chose.

    Attributes:
        ids: The tokens.
        mask: For each token, 1 if the model chose it and it is learned here, else 0.
        scores: For each token, the score that stands on it.
        advantages: For each token its advantage, where the rollout says it; else None.
    """

    ids: list[int]
    mask: list[int]
    scores: list[float]
    advantages: list[float] | None = None

    @classmethod
    def formulated(cls, rollouts: DataProto, place: int, scores: str = "rm_scores") -> Self:
        """One row of ``formulate_rollouts`` without its padding.

        Args:
            rollouts: The batch.
            place: Which row.
            scores: The batch's column of scores.
        """
        batch = rollouts.batch
        seen = batch["attention_mask"][place].bool()
        after_first = seen[1:]
        mask, found = (batch[name][place][after_first].tolist() for name in ("loss_mask", scores))
        ids = batch["input_ids"][place][seen].tolist()
        lead = len(ids) - len(mask)  # 1 where the row is the longest: then nothing speaks of its first token
        advantages = None
        if "advantages" in set(batch.keys()):
            advantages = [0.0] * lead + batch["advantages"][place][after_first].tolist()
        return cls(ids, [0] * lead + [int(one) for one in mask], [0.0] * lead + found, advantages)


@dataclass(frozen=True)
class Trajectory:
    """One episode.

    Attributes:
        env_id: Where it was played.
        tag: The environment's tag.
        reward: The sum of the environment's rewards, with the sign of ``trainer.reward_sign``.
        score: What it is trained on: rewards and penalties, normalized as the configuration says.
        rows: Its tokens. One row, or several where the model was not shown what it had written token by token.
        weight: How much it counts in means: 1, or the fraction of its tree that it stands for.
        entropy: The mean entropy of a token, in nats, the mean over its rows; None where it was not asked for.
    """

    env_id: int
    tag: str
    reward: float
    score: float
    rows: list[TokenRow] = field(default_factory=list)
    weight: float = 1.0
    entropy: float | None = None


@dataclass(frozen=True)
class Group:
    """Trajectories from the same start.

    Attributes:
        uid: Different for every group that was ever played.
        members: The trajectories.
    """

    uid: str
    members: list[Trajectory]

    @property
    def scores(self) -> list[float]:
        """What its members are trained on."""
        return [member.score for member in self.members]

    @property
    def rewards(self) -> list[float]:
        """What its members earned."""
        return [member.reward for member in self.members]

    @property
    def lengths(self) -> list[int]:
        """How many tokens the model chose in each of its members."""
        return [sum(sum(row.mask) for row in member.rows) for member in self.members]

    @property
    def entropies(self) -> list[float]:
        """How uncertain the model was in each of its members, where that is known."""
        return [member.entropy for member in self.members if member.entropy is not None]


def all_members(groups: Iterable[Group]) -> list[Trajectory]:
    """The trajectories of all groups, in order."""
    return [member for group in groups for member in group.members]
