"""RAGEN's two wrappers, under its names: a local model or a remote API in place of a worker group.

Scripts written for RAGEN create one and pass it to ``LLMAgentProxy``. The wrappers read RAGEN's keys and use our
backends, which have more options; see :mod:`ragen.llm_agent.backends`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.config.loading import as_config
from ragen.errors import BackendError, ConfigError
from ragen.llm_agent.backends.base import Backend, Sampling
from ragen.llm_agent.backends.batch import outputs_of, read_sampling, requests_of
from ragen.llm_agent.backends.factory import backend_class

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.config.schema import Config

PROVIDERS = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "deepseek": ("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "anthropic": ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "together": ("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
}
"""RAGEN's providers: the address of each one's chat completions API, and the environment variable of its key."""


class RagenWrapper:
    """A backend with ``generate_sequences``, which takes batches of any size.

    Attributes:
        config: The whole configuration.
        tokenizer: The model's.
        llm: The engine or the backend.
    """

    def __init__(self, config: Any, tokenizer: Any, backend: Backend, sampling: Sampling) -> None:
        """Use a backend; see the classes below."""
        self.config, self.tokenizer = config, tokenizer
        self.llm: Any = backend
        self._backend, self._sampling = backend, sampling

    def generate_sequences(self, lm_inputs: DataProto) -> DataProto:
        """Answer a batch of prompts; see :class:`~ragen.llm_agent.rollout.actor.BackendActor`.

        Args:
            lm_inputs: The prompts; with ``meta_info["skip_generation"]`` they are returned unchanged.

        Returns:
            ``response_texts``, ``env_ids``, ``group_ids`` and more in ``non_tensor_batch``.

        Raises:
            BackendError: A prompt got no reply, as in RAGEN; with ``actor.backend``, only its trajectory ends.
        """
        if lm_inputs.meta_info.get("skip_generation", False):
            return lm_inputs
        replies = self._backend.generate(requests_of(lm_inputs), self._sampling)
        failed = [reply.error for reply in replies if reply.error is not None]
        if failed:
            raise BackendError(f"{len(failed)} of {len(replies)} prompts got no reply; the first: {failed[0]}")
        pad = self.tokenizer.pad_token_id
        return outputs_of(lm_inputs, replies, self.tokenizer.eos_token_id if pad is None else pad)

    def close(self) -> None:
        """Release the backend's resources."""
        self._backend.close()


class VllmWrapperWg(RagenWrapper):
    """A vLLM engine in this process, with the sampling of ``actor_rollout_ref.rollout.val_kwargs``."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        """Start the engine.

        Args:
            config: ``actor_rollout_ref.model.path`` is the model; ``actor_rollout_ref.rollout`` holds its options.
            tokenizer: The model's.

        Raises:
            ConfigError: vLLM is not installed, or cannot start with these options.
        """
        backend: Any = backend_class("vllm").from_config(config, tokenizer)
        super().__init__(config, tokenizer, backend, replace(read_sampling(config, validate=True), do_sample=True))
        self.llm = backend.llm


class ApiCallingWrapperWg(RagenWrapper):
    """A model behind an API: ``model_config.model_name`` names an entry of ``model_info``."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        """Read the two sections; nothing is sent yet.

        Args:
            config: ``model_config``: ``model_name``, ``max_concurrency``; ``model_info.<name>``: ``provider_name``,
                ``model_name``, ``generation_kwargs``, and ``api_key`` if it is not in the environment.
            tokenizer: The prompts' tokenizer.

        Raises:
            ConfigError: A configuration key is missing, the provider is unknown, or its API key is missing.
        """
        from ragen.llm_agent.backends.openai_settings import Access, ApiSettings

        whole = as_config(config)
        if not isinstance(name := whole.select("model_config.model_name"), str):
            raise ConfigError("model_config.model_name is missing: expected a key of model_info.")
        section = _model_section(whole, name)
        url, variable = _provider(name, section)
        key = str(section.get("api_key") or os.environ.get(variable, "")).strip()
        if not key:
            raise ConfigError(
                f"model_info.{name} is of provider {section['provider_name']!r}, and the environment variable "
                f"{variable!r} is not set; set it, or model_info.{name}.api_key."
            )
        request = dict(section.get("generation_kwargs") or {})
        if "max_completion_tokens" in request:
            request.setdefault("max_tokens", None)
        settings = ApiSettings(
            model=str(section.get("model_name") or name),
            base_url=url,
            api_key_env=variable,
            max_concurrency=whole.select("model_config.max_concurrency", 4),
            request=request,
        )
        backend: Any = backend_class("openai")
        super().__init__(config, tokenizer, backend(settings, Access(key)), Sampling())
        self.llm_kwargs = request


def _model_section(config: Config, name: str) -> dict[str, Any]:
    plain = config.select("model_info", {})
    if not isinstance(plain.get(name), Mapping):
        known = ", ".join(sorted(map(str, plain))) or "none"
        raise ConfigError(f"model_config.model_name is {name!r}, and model_info has no such entry; it has {known}.")
    return dict(plain[name])


def _provider(name: str, section: Mapping[str, Any]) -> tuple[str, str]:
    given = section.get("provider_name")
    provider = PROVIDERS.get(str(given).lower())
    if provider is None:
        raise ConfigError(
            f"model_info.{name}.provider_name is {given!r}; expected one of {', '.join(PROVIDERS)}. Any other server "
            "with OpenAI's chat completions API is used with actor.backend=openai and actor.base_url."
        )
    return provider
