"""Rows of a rollout by trajectory, and which groups of trajectories are worth keeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ragen.errors import InputError

if TYPE_CHECKING:
    from verl import DataProto

Rows = list[list[dict[str, Any]]]
Keeps = Callable[[np.ndarray], bool]


class Collected(NamedTuple):
    """Trajectories; every array has one value for each.

    Attributes:
        batch_list: The rows of each, in the order of its turns.
        episode_rewards: Sums of rewards, float32.
        episode_lengths: Turns, float32.
        success: Arrays by name, such as ``success_rate``.
        traj_uid: Names, never used twice.
        tool_callings: Sums of ``info["tool_calling"]``, float32.
    """

    batch_list: Rows
    episode_rewards: np.ndarray
    episode_lengths: np.ndarray
    success: dict[str, np.ndarray]
    traj_uid: np.ndarray
    tool_callings: np.ndarray

    def some(self, rows: Sequence[int]) -> Collected:
        """Only some of the trajectories."""
        index = np.array(rows, dtype=int)
        return Collected(
            [self.batch_list[row] for row in rows],
            self.episode_rewards[index],
            self.episode_lengths[index],
            {name: values[index] for name, values in self.success.items()},
            self.traj_uid[index],
            self.tool_callings[index],
        )

    def __add__(self, other: Collected) -> Collected:  # type: ignore[override]  # trajectories, not fields
        """These trajectories and others."""
        return Collected(
            self.batch_list + other.batch_list,
            np.concatenate([self.episode_rewards, other.episode_rewards]),
            np.concatenate([self.episode_lengths, other.episode_lengths]),
            {name: np.concatenate([values, other.success[name]]) for name, values in self.success.items()},
            np.concatenate([self.traj_uid, other.traj_uid]),
            np.concatenate([self.tool_callings, other.tool_callings]),
        )


def to_list_of_dict(batch: DataProto) -> list[dict[str, Any]]:
    """The rows of a batch, each with its tensors and objects by their names."""
    tensors = dict(batch.batch.items()) if batch.batch is not None else {}
    columns = {**tensors, **batch.non_tensor_batch}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(batch))]


def rewards_differ(rewards: np.ndarray) -> bool:
    """Whether a group has something to compare: its rewards are not all equal, but for rounding."""
    return not np.allclose(rewards, rewards[0])


def filter_group_data(
    batch_list: Rows,
    episode_rewards: np.ndarray,
    episode_lengths: np.ndarray,
    success: dict[str, np.ndarray],
    traj_uid: np.ndarray,
    tool_callings: np.ndarray,
    config: Any = None,
    last_try: bool = False,
    *,
    group_n: int | None = None,
    keeps: Keeps = rewards_differ,
) -> Collected:
    """Leave out the groups from which nothing can be learnt.

    Args:
        batch_list: See :class:`Collected`, as for the next ones; members of a group follow on one another.
        episode_rewards: See there.
        episode_lengths: See there.
        success: See there.
        traj_uid: See there.
        tool_callings: See there.
        config: The whole configuration, which has the size of groups where ``group_n`` is left out.
        last_try: Keep everything: there will be no other.
        group_n: Members of a group.
        keeps: Whether a group of these rewards stays.

    Raises:
        InputError: The trajectories are not whole groups, or the size of groups is unknown.
    """
    given = Collected(batch_list, episode_rewards, episode_lengths, success, traj_uid, tool_callings)
    if last_try:
        return given
    size = group_n if group_n is not None else _group_n(config)
    if len(batch_list) % size:
        raise InputError(f"{len(batch_list)} trajectories are not whole groups of {size}.")
    starts = [start for start in range(0, len(batch_list), size) if keeps(episode_rewards[start : start + size])]
    return given.some([row for start in starts for row in range(start, start + size)])


def _group_n(config: Any) -> int:
    from ragen.llm_agent.collecting.settings import CollectorSettings

    size = None if config is None else CollectorSettings.read(config).group_n
    if size is None:
        raise InputError("filter_group_data needs group_n, or a configuration with env.rollout.n.")
    return size
