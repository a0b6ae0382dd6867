"""RAGEN-2's ``filter_loss_scaling`` under verl's V1 trainer, which has no place for it (checked with 0.9.1).

The sampler says in a step's metrics by what its advantages are to be multiplied; the trainer's ``_compute_advantage``
is extended here to do so, in the transfer queue, once verl has computed them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ragen.errors import ConfigError
from ragen.extras import needs
from ragen.llm_agent.filtering.loss_scaling import KEY, LOSS_SCALE

with needs("verl", "verl's agent loop"):
    from tensordict import TensorDict

METHOD = "_compute_advantage"
ADVANTAGES = "advantages"
_MARK = "_ragen_scales_advantages"


def extend(trainer: type) -> None:
    """Have a class of trainers multiply each step's advantages; a second time changes nothing.

    Args:
        trainer: A class with verl's ``_compute_advantage(batch, metrics)``.

    Raises:
        ConfigError: It has no such method, so what is asked for cannot be done.
    """
    compute: Callable[..., Any] | None = getattr(trainer, METHOD, None)
    if compute is None:
        raise ConfigError(f"{KEY} is set, and this verl's trainer has no {METHOD} to do it in; expected 'none'.")
    if getattr(compute, _MARK, False):
        return

    @functools.wraps(compute)
    def compute_advantage(self: Any, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        result = compute(self, batch, metrics, *args, **kwargs)
        scale = metrics.get(LOSS_SCALE, 1.0)
        if scale != 1:
            multiply(batch, scale)
        return result

    setattr(compute_advantage, _MARK, True)
    setattr(trainer, METHOD, compute_advantage)


def multiply(batch: Any, scale: float) -> None:
    """Multiply the advantages of a batch's rows where they lie, in the transfer queue.

    Args:
        batch: verl's ``KVBatchMeta``.
        scale: The factor.
    """
    import transfer_queue as queue

    where = {"keys": batch.keys, "partition_id": batch.partition_id}
    advantages = queue.kv_batch_get(**where, select_fields=[ADVANTAGES])[ADVANTAGES] * scale
    queue.kv_batch_put(**where, fields=TensorDict({ADVANTAGES: advantages}, batch_size=len(batch.keys)))
