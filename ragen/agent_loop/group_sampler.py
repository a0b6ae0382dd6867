"""The sampler of verl's V1 trainer for RAGEN's filters: samples all groups except those filtered out.

verl loads the class by ``trainer.v1.sampler.custom_sampler`` and gives it ``sampler_kwargs``, where
:mod:`ragen.agent_loop.filters` puts RAGEN's keys. A step's groups are played as usual; those filtered out are removed
from the transfer queue before anything is computed from them. verl then pads the batch with rows that have no loss, to
a multiple of mini-batches and processes.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import transfer_queue

from ragen.agent_loop.filters import SCALING
from ragen.agent_loop.step_metrics import EpisodeSummary, add_metrics, episodes_of
from ragen.errors import CollectError, InputError
from ragen.extras import needs
from ragen.llm_agent.filtering.advantages import SCALINGS, LossScaling
from ragen.llm_agent.filtering.group_filter import read_empty_stop, read_filter
from ragen.settings import choice

with needs("verl", "verl's agent loop"):
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

log = logging.getLogger(__name__)

TRAIN = "train"  # verl's name of the training partition
BATCHES = "rollout/filter_batches"  # number of batches played for the step


@dataclass
class PlayedGroup:
    """A group as input of RAGEN's filters; see :class:`~ragen.llm_agent.filtering.group_filter.Measured`."""

    scores: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)


class GroupSampler(ReplayBuffer):
    """verl's replay buffer for synchronous training, which returns only the chosen groups.

    Attributes:
        on_batch: Called with every batch before its groups are filtered.
    """

    def __init__(self, *, sampler_kwargs: Any, **kwargs: Any) -> None:
        """Read the filters' settings.

        Args:
            sampler_kwargs: RAGEN's ``rollout_filter_*``, and ``filter_loss_scaling``.
            **kwargs: See ``ReplayBuffer``.

        Raises:
            ConfigError: A key has an invalid value.
        """
        super().__init__(sampler_kwargs=sampler_kwargs, **kwargs)
        config = {"agent_proxy": dict(sampler_kwargs)}
        self._choice, self._most = read_filter(config), read_empty_stop(config)
        self._scaling = LossScaling(choice(sampler_kwargs, SCALING, LossScaling.name, SCALINGS))
        self.on_batch: Callable[[Any], None] | None = None

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """A batch, and its metrics.

        Args:
            global_steps: The training step.
            partition_id: ``"train"``, or ``"val"``, which is not filtered.
            batch_size: How many groups are played for it.

        Raises:
            CollectError: All groups were filtered out in the maximum number of consecutive batches.
            InputError: Some trajectories are not of RAGEN's environments.
        """
        if partition_id != TRAIN:
            return super().sample(global_steps, partition_id, batch_size)
        episodes: list[EpisodeSummary] = []
        batches = 0
        while True:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            batches += 1
            if self.on_batch is not None:
                self.on_batch(batch)
            found = episodes_of(batch)
            episodes += found
            groups = groups_of(found, batch)
            places = self._choice.chosen(self._choice.measures(list(groups.values())))
            kept = self._kept(batch, {list(groups)[place] for place in places})
            if kept.keys:
                break
            self._sample_on(batches, batch_size)
        metrics |= self._choice.metrics(list(groups.values()), places) | {BATCHES: batches}
        metrics |= self._scaling.metrics(metrics)
        add_metrics(episodes, metrics)
        return kept, metrics

    def _kept(self, batch: Any, uids: set[str]) -> Any:
        """A batch's rows of these groups; the others are removed from the transfer queue."""
        stays = [uid_of(key) in uids for key in batch.keys]
        left = [key for key, does in zip(batch.keys, stays, strict=True) if not does]
        if left:
            transfer_queue.kv_clear(partition_id=batch.partition_id, keys=left)
        return transfer_queue.KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[key for key, does in zip(batch.keys, stays, strict=True) if does],
            tags=[tag for tag, does in zip(batch.tags, stays, strict=True) if does],
        )

    def _sample_on(self, batches: int, batch_size: int) -> None:
        """Play another batch, since this one was filtered out entirely; RAGEN's trainer skips the step instead."""
        if batches == self._most:
            raise CollectError(
                f"rollout_filter_* has left out every group of {batches} batches in a row, so there is nothing to "
                "train on. If the groups' scores do not differ any more, the training is over; otherwise keep more "
                "groups (rollout_filter_value), or allow more batches (rollout_filter_empty_stop_steps)."
            )
        log.warning("no group is left of batch %d of this step; another one is played", batches)
        self.refill_fn(batch_size)


def uid_of(key: str) -> str:
    """The group of a transfer-queue row with key ``<uid of the group>_<number in the group>_<row>``."""
    return key.rsplit("_", 2)[0]


def groups_of(
    episodes: Sequence[EpisodeSummary], batch: Any, entropies: Mapping[str, float] | None = None
) -> dict[str, PlayedGroup]:
    """The groups of a batch by uid, ordered by seed rather than by completion.

    Args:
        episodes: Its trajectories.
        batch: verl's ``KVBatchMeta``.
        entropies: The mean token entropy of each row, by key, if known.

    Raises:
        InputError: Some trajectories are of other agent loops than RAGEN's.
    """
    rows: dict[str, list[str]] = defaultdict(list)
    for key in batch.keys:
        rows[key.rpartition("_")[0]].append(key)
    if len(rows) != len(episodes):
        raise InputError(
            f"{len(rows) - len(episodes)} of {len(rows)} trajectories have no information about an environment, so "
            "rollout_filter_* cannot be done; set it with the agent loop ragen_env alone."
        )
    where = {"keys": batch.keys, "partition_id": batch.partition_id}
    masks = transfer_queue.kv_batch_get(**where, select_fields=["response_mask"])["response_mask"].unbind()
    said = {key: int(mask.sum()) for key, mask in zip(batch.keys, masks, strict=True)}
    groups: dict[str, PlayedGroup] = defaultdict(PlayedGroup)
    played = zip(episodes, rows.values(), strict=True)
    for episode, keys in sorted(played, key=lambda each: (each[0].seed, each[0].tag)):
        group = groups[episode.group]
        group.scores.append(episode.numbers["score"])
        group.rewards.append(episode.numbers["env_reward"])
        group.lengths.append(sum(said[key] for key in keys))
        if entropies is not None:
            group.entropies.append(fmean(entropies[key] for key in keys))
    return dict(groups)
