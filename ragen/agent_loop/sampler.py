"""The sampler of verl's trainer, in which trajectories whose environment failed do not exist.

verl plays each member of a group by itself, and computes advantages of whatever rows a sampler returns. This one
removes the rows of members without a signal (:func:`ragen.validity.with_signal`) from the transfer queue when their
group has ended, before verl's filter (``algorithm.filter_groups``), estimators, metrics and validation read it. So each
of them computes, bit for bit, what it would for a group without these members. A group of which nothing is left is one
that failed, which verl pads, or plays again.

verl creates it by ``trainer.v1.sampler.custom_sampler`` (checked with verl 0.9.1), for each of its trainer modes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ragen.errors import ConfigError, EnvsFailedError
from ragen.extras import needs
from ragen.validity import MASK, check_share, env_error, failure_metrics, failures_in_words, with_signal

with needs("verl", "verl's agent loop"):
    import transfer_queue
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

log = logging.getLogger(__name__)

TRAIN = "train"
_LOST = "a trajectory that raised"


def group_of(name: str) -> str:
    """The group's uid in the key of a row, ``<uid>_<number in the group>_<row>``, or in its first two parts."""
    return name.partition("_")[0]


class _ValidOnly(ReplayBuffer):
    """A replay buffer without failed trajectories, whose rows are in the order of the data set."""

    def __init__(self, *, sampler_kwargs: Any, **kwargs: Any) -> None:
        """Read this package's arguments; verl's buffer reads the others.

        Args:
            sampler_kwargs: ``n`` (members of a group), ``failed_trajectories``, and what verl gives only to its own
                samplers: ``filter_groups``, ``train_batch_size``, ``sync_refill_failed_groups``.
            **kwargs: The other arguments of verl's buffer.
        """
        filters, refills = sampler_kwargs.get("filter_groups"), bool(sampler_kwargs.get("sync_refill_failed_groups"))
        size, chosen = int(sampler_kwargs["train_batch_size"]), filters if filters and filters.get("enable") else {}
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            filter_groups_metric=str(chosen["metric"]) if chosen else None,
            train_batch_size=size,
            gen_batch_size=1 if chosen or refills else size,
            max_inflight_gen_batches=chosen.get("max_inflight_gen_batches", 1),
            sync_refill_failed_groups=refills,
            **kwargs,
        )
        self._members = int(sampler_kwargs["n"])
        self._first_batch = size * self._members  # trajectories
        self._policy = sampler_kwargs.get("failed_trajectories") or MASK
        self._errors: list[str | None] = []  # of all trajectories of the run
        self._fresh: list[dict[str, Any]] = []  # tag and error of those since the last batch
        self._begun: dict[str, tuple[int, str]] = {}  # seed and tag of the groups that have been looked at

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """A batch without failed trajectories, and its metrics, which count them.

        Raises:
            EnvsFailedError: More than half of the run's trajectories failed, or all of the batch.
        """
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        check_share(self._errors)
        errors = [env_error(each) for each in self._fresh]
        if any(errors):
            log.warning("%s: %s of %d trajectories left out", partition_id, failures_in_words(errors), len(errors))
        if not batch.keys:
            raise EnvsFailedError(f"no trajectory of a batch is left ({failures_in_words(errors)}).")
        metrics |= {f"envs/{name}": value for name, value in failure_metrics(self._fresh).items()}
        self._fresh = []
        batch.reorder(sorted(range(len(batch.keys)), key=lambda at: self._place(batch.keys[at])))
        return batch, metrics

    def _place(self, key: str) -> tuple[Any, ...]:
        """The place of a row in the data set; verl's order is that of completion, which differs between runs."""
        uid, member, row = key.rsplit("_", 2)
        return (*self._begun[uid], int(member), int(row))

    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        for partition, rows in self.partitions.items():
            finished, failed = self.finished_keys[partition], self.failure_keys[partition]
            ended = (finished | failed) - self._begun.keys()
            if fresh := [key for key in rows if group_of(key) in ended]:
                left_out = self._without_signal(partition, fresh)
                if left_out:
                    transfer_queue.kv_clear(partition_id=partition, keys=left_out)
                for key in left_out:
                    del rows[key]
            empty = finished - {group_of(key) for key in rows}
            finished -= empty
            failed |= empty
        if len(self._errors) >= self._first_batch:
            check_share(self._errors)  # here, since asynchronous trainers play failed groups again without an end

    def _without_signal(self, partition: str, keys: Sequence[str]) -> list[str]:
        """Counts the trajectories of groups that have ended; returns the rows of those that are left out."""
        data = transfer_queue.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=["extra_fields"])
        extras = data.get("extra_fields").tolist()
        played = {
            key.rpartition("_")[0]: extra if isinstance(extra, dict) else {}
            for key, extra in zip(keys, extras, strict=True)
        }
        groups = [group_of(name) for name in played]
        errors = [env_error(extra) for extra in played.values()]
        for group, extra, error in zip(groups, played.values(), errors, strict=True):
            self._begun[group] = (extra.get("env_seed", 0), extra.get("env_tag", ""))
            self._fresh.append({"tag": extra.get("env_tag", ""), "env_error": error})
        self._errors += errors
        if partition != TRAIN:  # nothing is compared there
            stays = [error is None for error in errors]
        else:
            raised = [group for group, count in Counter(groups).items() for _ in range(self._members - count)]
            stays = [bool(does) for does in with_signal(groups + raised, errors + [_LOST] * len(raised), self._policy)]
        kept = {name for name, does in zip(played, stays, strict=False) if does}
        return [key for key in keys if key.rpartition("_")[0] not in kept]


class _ValidOnlyAsync(_ValidOnly, ReplayBufferAsync):
    """The same for asynchronous trainers."""


def sampler(*, trainer_mode: str, **kwargs: Any) -> ReplayBuffer:
    """The sampler for a trainer mode of verl's.

    Raises:
        ConfigError: This verl's samplers cannot be extended in this way.
    """
    if not hasattr(ReplayBuffer, "_sync_metadata_from_transfer_queue"):
        raise ConfigError("this verl's sampler cannot leave failed trajectories out; install verl 0.9.1.")
    kind = _ValidOnly if trainer_mode == "sync" else _ValidOnlyAsync
    return kind(trainer_mode=trainer_mode, **kwargs)
