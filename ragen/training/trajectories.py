"""The training data: trajectories as rows of tokens, in groups with the same initial state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from verl import DataProto


@dataclass(frozen=True)
class TokenRow:
    """A row of tokens, with the mask of sampled ones.

    Attributes:
        ids: The tokens.
        mask: For each token, 1 if it was sampled and this row trains on it, else 0.
    """

    ids: list[int]
    mask: list[int]

    @classmethod
    def formulated(cls, rollouts: DataProto, place: int) -> Self:
        """One row of ``formulate_rollouts`` without its padding."""
        seen = rollouts.batch["attention_mask"][place].bool()
        loss = rollouts.batch["loss_mask"][place]
        mask = loss[seen[-len(loss) :]].int().tolist()
        ids = rollouts.batch["input_ids"][place][seen].tolist()
        return cls(ids, [0] * (len(ids) - len(mask)) + mask)  # the mask may begin later


@dataclass(frozen=True)
class Trajectory:
    """One episode.

    Attributes:
        env_id: Its environment.
        tag: The environment's tag.
        reward: The sum of the environment's rewards, with the sign of ``trainer.reward_sign``.
        score: Score for training: rewards and penalties, normalized as the configuration says.
        rows: Its tokens. One row, or several if prompts did not contain earlier replies token by token.
        entropy: The mean token entropy in nats, averaged over its rows; None if not requested.
        env_error: Its environment's failure; None if it has none.
        has_signal: Whether it is learned from; if not, it has no rows. See :mod:`ragen.validity`.
    """

    env_id: int
    tag: str
    reward: float
    score: float
    rows: list[TokenRow] = field(default_factory=list)
    entropy: float | None = None
    env_error: str | None = None
    has_signal: bool = True


@dataclass(frozen=True)
class Group:
    """Trajectories with the same initial state. Its figures are those of the members that are learned from.

    Attributes:
        uid: A unique id.
        members: The trajectories, with those that are not learned from.
    """

    uid: str
    members: list[Trajectory]

    @property
    def learned(self) -> list[Trajectory]:
        """The members that are learned from; none or at least two, unless the group has a single member by design."""
        return [member for member in self.members if member.has_signal]

    @property
    def scores(self) -> list[float]:
        """Their scores."""
        return [member.score for member in self.learned]

    @property
    def rewards(self) -> list[float]:
        """Their rewards."""
        return [member.reward for member in self.learned]

    @property
    def lengths(self) -> list[int]:
        """Their numbers of sampled tokens."""
        return [sum(sum(row.mask) for row in member.rows) for member in self.learned]

    @property
    def entropies(self) -> list[float]:
        """Their entropies, if known."""
        return [member.entropy for member in self.learned if member.entropy is not None]


def all_members(groups: Iterable[Group]) -> list[Trajectory]:
    """The trajectories of all groups, in order."""
    return [member for group in groups for member in group.members]
