"""verl's batches, made here so that verl is imported when a test needs one, and not when tests are collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl import DataProto


def no_prompts(**meta_info: Any) -> DataProto:
    """What a trainer hands to a rollout: no rows, and perhaps something to know."""
    from verl import DataProto

    return DataProto(meta_info=meta_info)


def batch_of(
    tensors: dict[str, Any] | None = None, meta_info: dict[str, Any] | None = None, **columns: Any
) -> DataProto:
    """A batch of tensors and of columns of anything."""
    from verl import DataProto

    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info=meta_info)
