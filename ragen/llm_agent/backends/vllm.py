"""The backend that runs a vLLM engine in this process, with the options that RAGEN's ``VllmWrapperWg`` takes.

The options are read from ``actor_rollout_ref.rollout`` under verl's names; missing ones keep the engine's defaults.
``actor.vllm`` holds further arguments of ``vllm.LLM``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from ragen.config.loading import as_config
from ragen.errors import ConfigError, one_line
from ragen.llm_agent.backends.base import Backend, Reply, Request, Sampling, prompt_ids, unanswerable
from ragen.llm_agent.backends.factory import model_path

_ROLLOUT = "actor_rollout_ref.rollout"
# verl's keys are vllm.LLM's names, except the first. `load_format` is omitted: verl's default is random weights, to be
# replaced.
ENGINE_OPTIONS = (
    *("tensor_model_parallel_size", "dtype", "enforce_eager", "gpu_memory_utilization", "max_model_len"),
    *("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "enable_prefix_caching"),
    *("enable_sleep_mode", "disable_custom_all_reduce", "disable_log_stats", "seed"),
)


class VllmBackend(Backend):
    """Answers prompts with a vLLM engine.

    Attributes:
        takes_tokens: True: prompts must be in the model's own tokens.
        llm: The engine.
    """

    takes_tokens: ClassVar[bool] = True

    def __init__(self, llm: Any, tokenizer: Any, max_model_len: int | None = None, log_probs: bool = True) -> None:
        """Use an engine.

        Args:
            llm: A ``vllm.LLM``.
            tokenizer: The model's; its end token ends a reply.
            max_model_len: Tokens of a prompt together with its reply; None takes the engine's.
            log_probs: Whether to request log-probabilities. They are those at the sampling temperature only with the
                engine option ``logprobs_mode: processed_logprobs``.
        """
        self.llm = llm
        self.tokenizer = tokenizer
        if max_model_len is None:  # the engine raises for a whole batch if one prompt is too long
            model = getattr(getattr(llm, "llm_engine", None), "model_config", None)
            max_model_len = getattr(model, "max_model_len", None)
        self.max_model_len = max_model_len
        self.log_probs = log_probs

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """See :meth:`Backend.from_config`; see the module for the keys."""
        import vllm

        log_probs = as_config(config).actor_rollout_ref.rollout.calculate_log_probs
        options = engine_options(config, log_probs)
        path = model_path(config)
        try:
            llm = vllm.LLM(path, **options)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise ConfigError(f"vLLM cannot start with model {path!r}: {one_line(error)}") from error
        return cls(llm, tokenizer, options.get("max_model_len"), log_probs)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """See :meth:`Backend.generate`."""
        replies = [unanswerable(request, sampling.max_tokens, self.max_model_len) for request in requests]
        prompts = [
            {"prompt_token_ids": prompt_ids(request)}
            for request, failed in zip(requests, replies, strict=True)
            if failed is None
        ]
        if not prompts:
            return [failed for failed in replies if failed is not None]
        outputs = iter(self.llm.generate(prompts, self._sampling_params(sampling), use_tqdm=False))
        return [failed or self._reply(next(outputs)) for failed in replies]

    def _sampling_params(self, sampling: Sampling) -> Any:
        from vllm import SamplingParams

        greedy = sampling.greedy
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=0.0 if greedy else sampling.temperature,
            top_p=1.0 if greedy else sampling.top_p,
            top_k=-1 if greedy or sampling.top_k < 1 else sampling.top_k,
            logprobs=0 if self.log_probs else None,  # 0: only of the sampled token
            stop_token_ids=[self.tokenizer.eos_token_id],
            skip_special_tokens=True,
        )

    def _reply(self, output: Any) -> Reply:
        completion = output.outputs[0]
        ids = list(completion.token_ids)
        steps = completion.logprobs
        log_probs = None if steps is None else [step[token].logprob for token, step in zip(ids, steps, strict=True)]
        usage = {"requests": 1, "prompt_tokens": len(output.prompt_token_ids), "completion_tokens": len(ids)}
        cut_off = completion.finish_reason == "length"
        return Reply(completion.text, ids, log_probs, cut_off=cut_off, usage=usage)

    def close(self) -> None:
        """See :meth:`Backend.close`; the engine ends with its last reference."""
        self.llm = None


def engine_options(config: Any, log_probs: bool) -> dict[str, Any]:
    """The keyword arguments of ``vllm.LLM``.

    Args:
        config: The whole configuration.
        log_probs: Whether log-probabilities will be requested; the options then make them those at the sampling
            temperature.

    Raises:
        ConfigError: ``actor.vllm`` is not a section.
    """
    whole = as_config(config)
    values = {name: whole.select(f"{_ROLLOUT}.{name}") for name in ENGINE_OPTIONS}
    options = {
        name.replace("_model_parallel", "_parallel"): value for name, value in values.items() if value is not None
    }
    options["trust_remote_code"] = whole.actor_rollout_ref.model.trust_remote_code
    if log_probs:
        options["logprobs_mode"] = whole.actor_rollout_ref.rollout.logprobs_mode
    return options | whole.actor.vllm
