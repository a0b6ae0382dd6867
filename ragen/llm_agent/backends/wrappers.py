"""RAGEN's wrapper of a local model, under its name: scripts written for RAGEN pass one to ``LLMAgentProxy``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.errors import BackendError
from ragen.llm_agent.backends.batch import outputs_of, read_sampling, requests_of
from ragen.llm_agent.backends.factory import backend_class

if TYPE_CHECKING:
    from verl import DataProto


class VllmWrapperWg:
    """A vLLM engine in this process, with the sampling of ``actor_rollout_ref.rollout.val_kwargs``.

    Attributes:
        config: The whole configuration.
        tokenizer: The model's.
        llm: The engine.
    """

    def __init__(self, config: Any, tokenizer: Any) -> None:
        """Start the engine.

        Args:
            config: ``actor_rollout_ref.model.path`` is the model; ``actor_rollout_ref.rollout`` holds its options.
            tokenizer: The model's.

        Raises:
            ConfigError: vLLM is not installed, or cannot start with these options.
        """
        backend: Any = backend_class("vllm").from_config(config, tokenizer)
        self._backend, self.config, self.tokenizer, self.llm = backend, config, tokenizer, backend.llm
        self._sampling = replace(read_sampling(config, validate=True), do_sample=True)

    def generate_sequences(self, lm_inputs: DataProto) -> DataProto:
        """Answer a batch of prompts of any size; see :class:`~ragen.llm_agent.rollout.actor.BackendActor`.

        Raises:
            BackendError: A prompt got no reply, as in RAGEN; with ``actor.backend``, only its trajectory ends.
        """
        if lm_inputs.meta_info.get("skip_generation", False):
            return lm_inputs
        replies = self._backend.generate(requests_of(lm_inputs), self._sampling)
        if failed := [reply.error for reply in replies if reply.error is not None]:
            raise BackendError(f"{len(failed)} of {len(replies)} prompts got no reply; the first: {failed[0]}")
        pad = self.tokenizer.pad_token_id
        return outputs_of(lm_inputs, replies, self.tokenizer.eos_token_id if pad is None else pad)

    def close(self) -> None:
        """Release the engine."""
        self._backend.close()
