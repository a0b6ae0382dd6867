"""The actor for a verl worker group.

A worker group splits a batch evenly over its workers, so the number of prompts must be a multiple of their number:
batches are padded with copies of prompts, whose replies are discarded.

A trainer passes its worker group to ``LLMAgentProxy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ragen.errors import BackendError
from ragen.llm_agent.backends.base import Reply
from ragen.llm_agent.backends.batch import outputs_of
from ragen.llm_agent.batches.dataproto import pad_id

if TYPE_CHECKING:
    from verl import DataProto


@runtime_checkable
class WorkerGroup(Protocol):
    """The interface of a verl worker group.

    Attributes:
        world_size: The number of its workers, over which a batch is split.
    """

    world_size: int

    def generate_sequences(self, prompts: Any) -> Any:
        """Answer a ``DataProto`` of prompts with a ``DataProto`` of replies."""


class VerlActor:
    """Answers a ``DataProto`` of prompts, in the model's own tokens, with a worker group.

    Attributes:
        workers: The worker group.
    """

    def __init__(self, workers: Any, tokenizer: Any) -> None:
        """Use a worker group.

        Args:
            workers: A ``RayWorkerGroup``, or anything with ``world_size`` and ``generate_sequences``.
            tokenizer: The model's.
        """
        self.workers = workers
        self.tokenizer = tokenizer
        self._pad = pad_id(tokenizer)

    def generate_sequences(self, lm_inputs: DataProto) -> DataProto:
        """Answer a batch of prompts, as :class:`~ragen.llm_agent.rollout.actor.BackendActor` does.

        Args:
            lm_inputs: Left-padded prompts with ``input_ids``, ``attention_mask`` and ``position_ids``. Its
                ``non_tensor_batch`` and ``meta_info`` (``validate``, ``do_sample``, ..) are passed to the workers. With
                ``skip_generation`` the call only signals the end of a rollout, and the prompts are returned.
        """
        if lm_inputs.meta_info.get("skip_generation", False):
            self._answered(lm_inputs)
            return lm_inputs
        answered = self._answered(lm_inputs)
        if len(answered) != len(lm_inputs):
            raise BackendError(
                f"the worker group answered {len(answered)} of {len(lm_inputs)} prompts; expected one answer each: "
                "actor_rollout_ref.rollout.n is for a trainer's own rollouts, here groups are made by es_manager."
            )
        return outputs_of(lm_inputs, self._replies(answered), self._pad)

    def _answered(self, prompts: DataProto) -> DataProto:
        """The workers' answer to a batch, without the copies that padded it."""
        from verl import DataProto
        from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

        known = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": self._pad, "recompute_log_prob": False}
        asked = DataProto(
            prompts.batch.select("input_ids", "attention_mask", "position_ids"),  # workers add their own `responses`
            dict(prompts.non_tensor_batch),
            known | dict(prompts.meta_info),
        )
        padded, extra = pad_dataproto_to_divisor(asked, self.workers.world_size)
        return unpad_dataproto(self.workers.generate_sequences(padded), extra)

    def _replies(self, answered: DataProto) -> list[Reply]:
        responses = answered.batch["responses"]
        seen = answered.batch["attention_mask"][:, -responses.shape[1] :].bool()
        log_probs = answered.batch.get("rollout_log_probs")
        return [
            self._reply(row[mask].tolist(), None if log_probs is None else log_probs[place][mask].tolist())
            for place, (row, mask) in enumerate(zip(responses, seen, strict=True))
        ]

    def _reply(self, ids: list[int], log_probs: list[float] | None) -> Reply:
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        cut_off = self.tokenizer.eos_token_id not in ids[-1:]
        return Reply(text, ids, log_probs, cut_off=cut_off, usage={"requests": 1, "completion_tokens": len(ids)})


def is_worker_group(actor: Any) -> bool:
    """Whether an actor splits a batch over workers, and therefore needs batches of the right size.

    RAGEN's wrapper does not, whatever attributes a subclass has: RAGEN's trainers give their mock actors a
    ``world_size`` too.
    """
    from ragen.llm_agent.backends.wrappers import VllmWrapperWg

    return isinstance(actor, WorkerGroup) and not isinstance(actor, VllmWrapperWg)
