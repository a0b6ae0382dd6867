"""What a batch of prompts says of each, who writes and who answers it, and what came back without a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.tokens.prompt_batch import AnyBatch, PromptBatch


class TalksToActors(Protocol):
    """What writes a turn's prompts and reads its replies, such as a ``ContextManager``, whose methods these are."""

    def get_lm_inputs(self, env_outputs: Sequence[dict[str, Any]]) -> DataProto:
        """The prompts as tensors."""

    def get_prompts(self, env_outputs: Sequence[dict[str, Any]], with_tokens: bool = True) -> PromptBatch:
        """The prompts without tensors."""

    def get_env_inputs(self, lm_outputs: AnyBatch) -> list[dict[str, Any]]:
        """The replies as inputs of environments."""


def actor_of(given: Any, config: Any, tokenizer: Any) -> Any:
    """What answers ``DataProto`` batches of any size: what was given, or something around it.

    Args:
        given: A backend, a worker group, or anything with ``generate_sequences``.
        config: The whole configuration.
        tokenizer: The actor's.
    """
    from ragen.llm_agent.backends.verl import VerlBackend, is_worker_group

    if is_worker_group(given):
        return VerlBackend(given, tokenizer)
    if hasattr(given, "generate_sequences"):
        return given
    from ragen.llm_agent.rollout.actor import BackendActor

    return BackendActor(given, config, tokenizer)


def name_requests(lm_inputs: AnyBatch, active: Sequence[Mapping[str, Any]]) -> None:
    """Say of every prompt which tag it is of and which turn of its episode it asks for, from 0."""
    from ragen.llm_agent.tokens.dataproto import object_array

    caches = {cache["env_id"]: cache for cache in active}
    rows = [caches[env_id] for env_id in lm_inputs.non_tensor_batch["env_ids"]]
    lm_inputs.non_tensor_batch["tags"] = object_array(cache["tag"] for cache in rows)
    lm_inputs.non_tensor_batch["turns"] = object_array(len(cache["history"]) - 1 for cache in rows)


def failures_of(lm_outputs: AnyBatch) -> dict[int, str]:
    """Environment id to what went wrong, for the prompts that got no reply; their episodes end here."""
    errors = lm_outputs.non_tensor_batch.get("errors")
    if errors is None:
        return {}
    env_ids = lm_outputs.non_tensor_batch["env_ids"]
    return {int(env_id): error for env_id, error in zip(env_ids, errors, strict=True) if error is not None}
