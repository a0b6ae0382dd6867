"""Rows of a ``DataProto``: counted, taken out, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.llm_agent.tokens.dataproto import object_array

if TYPE_CHECKING:
    from verl import DataProto


def row_count(proto: DataProto) -> int:
    """How many rows a ``DataProto`` has, also where a column is a plain list."""
    if proto.batch is not None:
        return int(proto.batch.batch_size[0])
    return len(next(iter(proto.non_tensor_batch.values()), ()))


def rows_of(proto: DataProto, start: int, stop: int) -> DataProto:
    """Some rows of a ``DataProto``, columns that are plain lists included."""
    from verl import DataProto

    columns = {name: _objects(values[start:stop]) for name, values in proto.non_tensor_batch.items()}
    return DataProto(None if proto.batch is None else proto.batch[start:stop], columns, dict(proto.meta_info))


def joined(protos: Sequence[DataProto], pad_id: int, left: bool) -> DataProto:
    """The rows of several ``DataProto`` as one, in order.

    Args:
        protos: With the same columns.
        pad_id: Fills up ``input_ids``, ``responses`` and ``prompts`` where others are longer; zeros all other columns.
        left: Whether to fill up on the left, as prompts are, or on the right, as answers.
    """
    from tensordict import TensorDict
    from verl import DataProto

    if len(protos) == 1:
        return protos[0]
    columns = {
        name: _objects([value for proto in protos for value in proto.non_tensor_batch[name]])
        for name in protos[0].non_tensor_batch
    }
    tensors, rows = None, sum(map(row_count, protos))
    if protos[0].batch is not None:
        names = [name for name in protos[0].batch.keys() if all(name in p.batch.keys() for p in protos)]  # noqa: SIM118
        merged = {name: _stacked([proto.batch[name] for proto in protos], name, left, pad_id) for name in names}
        tensors = TensorDict(merged, batch_size=[rows])
    return DataProto(tensors, columns, dict(protos[0].meta_info))


def _stacked(parts: Sequence[Any], name: str, left: bool, pad_id: int) -> Any:
    """Tensors below each other, their last dimension padded to the widest."""
    import torch
    from torch.nn.functional import pad

    if parts[0].dim() < 2:
        return torch.cat(list(parts))
    width = max(part.shape[-1] for part in parts)
    filler = pad_id if name in ("input_ids", "responses", "prompts") else 0
    sides = [(width - part.shape[-1], 0) if left else (0, width - part.shape[-1]) for part in parts]
    return torch.cat([pad(part, side, value=filler) for part, side in zip(parts, sides, strict=True)])


def _objects(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else object_array(values)
