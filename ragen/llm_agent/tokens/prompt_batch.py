"""A batch of prompts, or of replies to them, without tensors.

An actor that reads chats or rows of tokens needs no padding, and importing torch and verl takes two seconds. So a
:class:`PromptBatch` goes to an actor that has ``takes_prompts``, and a ``DataProto`` to any other. Both have the same
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from verl import DataProto


@dataclass
class PromptBatch:
    """Prompts or replies, a row each.

    Attributes:
        non_tensor_batch: Columns; see :mod:`ragen.llm_agent.rollout.actor`. ``prompt_ids`` has each prompt's tokens.
        meta_info: What goes for the whole batch.
        batch: None, where a ``DataProto`` has its tensors.
    """

    non_tensor_batch: dict[str, np.ndarray]
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    batch: None = None


AnyBatch: TypeAlias = "DataProto | PromptBatch"
