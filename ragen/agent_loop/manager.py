"""The agent loop manager that verl's V1 trainer makes: verl's own, which has each step's metrics tell of environments.

verl loads the class in the trainer's own process, by ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``. The
trainer has no place for metrics of an agent loop (checked with 0.9.1), so its ``_compute_metrics`` is extended here:
when verl is done, what the trajectories say is read from the transfer queue, and put with the rest.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ragen.agent_loop.step_metrics import PREFIX, EpisodeSummary, failing_tags, metrics_by_tag
from ragen.extras import needs

with needs("verl", "verl's agent loop"):
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

log = logging.getLogger(__name__)

METHOD = "_compute_metrics"
_MARK = "_ragen_tells_of_environments"


class RagenLoopManager(AgentLoopManagerTQ):
    """verl's manager; one is enough to have the trainer log what :mod:`ragen.agent_loop.step_metrics` lists."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See ``AgentLoopManagerTQ``; nothing is added to its arguments."""
        super().__init__(*args, **kwargs)
        extend(PPOTrainer)


def extend(trainer: type) -> None:
    """Have a class of trainers put the metrics of environments with each step's; a second time changes nothing.

    Args:
        trainer: A class with verl's ``_compute_metrics(batch, metrics, ...)``; without it only a warning is given,
            since the training itself loses nothing.
    """
    compute: Callable[..., Any] | None = getattr(trainer, METHOD, None)
    if compute is None:
        log.warning("this verl's trainer has no %s; its steps log nothing of environments by tag", METHOD)
        return
    if getattr(compute, _MARK, False):
        return

    @functools.wraps(compute)
    def compute_metrics(self: Any, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        result = compute(self, batch, metrics, *args, **kwargs)
        if not any(name.startswith(f"{PREFIX}/") for name in metrics):  # the sampler has told of all, left out or not
            tell(episodes_of(batch), metrics)
        return result

    setattr(compute_metrics, _MARK, True)
    setattr(trainer, METHOD, compute_metrics)


def tell(episodes: Sequence[EpisodeSummary], metrics: dict[str, Any]) -> None:
    """Put the metrics of a step's episodes with the others; tags whose environments fail are told on the console."""
    metrics.update(metrics_by_tag(episodes))
    for sentence in failing_tags(episodes):
        print(f"WARNING: {sentence}", flush=True)  # where verl prints its metrics


def episodes_of(batch: Any) -> list[EpisodeSummary]:
    """What the transfer queue has of a step's trajectories; one whose turns are rows of their own counts once.

    Args:
        batch: verl's ``KVBatchMeta``, of keys ``<uid of the group>_<number in the group>_<row>``.
    """
    import transfer_queue as queue

    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    last = {key.rpartition("_")[0]: key for key in keys}
    if not last:
        return []
    data = queue.kv_batch_get(keys=list(last.values()), partition_id=batch.partition_id, select_fields=["extra_fields"])
    fields = data.get("extra_fields").tolist()
    return [
        summary
        for trajectory, extra in zip(last, fields, strict=True)
        if (summary := summary_of(trajectory, extra)) is not None
    ]


def summary_of(trajectory: str, extra: Any) -> EpisodeSummary | None:
    """A trajectory as its agent loop told of it; None for another agent loop's, which plays no environment.

    Args:
        trajectory: ``<uid of the group>_<number in the group>``.
        extra: Its ``extra_fields``.
    """
    if not isinstance(extra, dict) or "env_tag" not in extra:
        return None
    group = trajectory.rpartition("_")[0]
    error, seed = extra.get("env_error", ""), extra.get("env_seed", 0)
    return EpisodeSummary(extra["env_tag"], group, extra["reward_extra_info"], error, seed)
