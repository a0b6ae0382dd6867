"""The backend that runs a Hugging Face model in this process, on CPU or GPU.

Prompts are answered in batches of similar length, padded on the left. Replies hold the sampled tokens and their
log-probabilities under the model at the sampling temperature, before ``top_k`` and ``top_p`` truncate the distribution,
as a trainer recomputes them from the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ragen.config.loading import as_config
from ragen.errors import ConfigError, one_line
from ragen.extras import needs
from ragen.llm_agent.backends.base import (
    Backend,
    Reply,
    Request,
    Sampling,
    check_context,
    cut_at_end,
    end_ids,
    prompt_ids,
    unanswerable,
)
from ragen.llm_agent.backends.factory import check_local, model_key, model_path
from ragen.llm_agent.batches.dataproto import left_padded, pad_id

with needs("hf", "actor.backend=hf"):
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        DynamicCache,
        GenerationConfig,
        LogitsProcessor,
        LogitsProcessorList,
    )

if TYPE_CHECKING:
    from torch import Tensor


class HfBackend(Backend):
    """Answers prompts with a model in this process.

    A sampled reply depends on the seed, on the batches answered before, and on the rest of its batch. With ``do_sample:
    false`` it depends on none of these, except for the effect of padding on the last bits of floating-point numbers.

    Attributes:
        takes_tokens: True: prompts must be in the model's own tokens.
        model: The model; a trainer may change its weights between two batches.
        position: Number of batches answered so far; together with ``seed`` it determines the next sample.
    """

    takes_tokens: ClassVar[bool] = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        batch_size: int = 64,
        batch_tokens: int = 131_072,
        seed: int | None = 0,
        share_prompts: bool = False,
    ) -> None:
        """Use a model.

        Args:
            model: A causal language model on its device.
            tokenizer: The model's.
            batch_size: Maximum number of prompts per batch.
            batch_tokens: Maximum number of tokens per batch, including padding and replies; a single prompt may have
                more.
            seed: Seed of the sampling; None uses torch's global generator.
            share_prompts: Whether equal prompts in a batch, such as a group's first ones, are prefilled only once; the
                model must cache keys and values of every token, as ``DynamicCache`` does by default.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.share_prompts = share_prompts
        self.position = 0
        self._pad = pad_id(tokenizer)
        self._ends = end_ids(tokenizer, getattr(model.generation_config, "eos_token_id", None))
        self._context = getattr(model.config, "max_position_embeddings", None)
        known = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > known:
            raise ConfigError(
                f"the tokenizer has {len(tokenizer)} tokens and the model has {known}; set 'actor.tokenizer' to the "
                "model's own, or to null."
            )

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """See :meth:`Backend.from_config`; the keys are ``actor.model`` and those under ``actor.hf``."""
        keys, model = as_config(config).actor.hf, load_model(config, read_device(config))
        return cls(model, tokenizer, keys.batch_size, keys.batch_tokens, keys.seed, keys.share_prompts)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """See :meth:`Backend.generate`."""
        replies = {
            place: unanswerable(request, sampling.max_tokens, self._context) for place, request in enumerate(requests)
        }
        fitting = [place for place, failed in replies.items() if failed is None]
        for places in self._by_length(fitting, requests, sampling.max_tokens):
            replies |= dict(zip(places, self._answer([requests[place] for place in places], sampling), strict=True))
        return [reply for _, reply in sorted(replies.items()) if reply is not None]

    def _by_length(self, places: Sequence[int], requests: Sequence[Request], max_tokens: int) -> Iterator[list[int]]:
        """The indices of requests in batches, longest prompts first, so that running out of memory happens at once."""
        batch: list[int] = []
        for place in sorted(places, key=lambda place: -len(prompt_ids(requests[place]))):
            longest = len(prompt_ids(requests[(batch or [place])[0]]))
            if batch and (
                len(batch) == self.batch_size or (len(batch) + 1) * (longest + max_tokens) > self.batch_tokens
            ):
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch

    def _answer(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        tensors = left_padded([prompt_ids(request) for request in requests], self._pad)
        ids, mask = (tensors[name].to(self.model.device) for name in ("input_ids", "attention_mask"))
        recorder = SampledLogProbs(1.0 if sampling.greedy else sampling.temperature)
        with torch.no_grad(), self._seeded(), _evaluating(self.model):
            rows = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=self._read_once(ids, mask) if self.share_prompts else None,
                generation_config=self._generation_config(sampling),
                logits_processor=LogitsProcessorList([recorder]),
            )
        sampled = rows[:, ids.shape[1] :]
        log_probs = recorder.log_probs(sampled)
        return [self._reply(*row) for row in zip(requests, sampled.tolist(), log_probs.tolist(), strict=True)]

    def _read_once(self, ids: Tensor, mask: Tensor) -> DynamicCache | None:
        """The keys and values of all tokens but the last; None if no two prompts are equal.

        Args:
            ids: The prompts, padded on the left, ``(batch, tokens)``.
            mask: Marks those that are tokens.
        """
        alike, owners = torch.unique(torch.cat([ids, mask], dim=1), dim=0, return_inverse=True)
        if len(alike) == len(ids) or ids.shape[1] == 1:
            return None
        ids, mask = (part[:, :-1] for part in alike.chunk(2, dim=1))
        cache = DynamicCache()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        self.model.get_decoder()(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        cache.batch_select_indices(owners)
        return cache

    def _reply(self, request: Request, row: list[int], log_probs: list[float]) -> Reply:
        ids = cut_at_end(row, self._ends)
        text = self.tokenizer.decode(ids[:-1] if ids[-1] in self._ends else ids, skip_special_tokens=True)
        usage = {"requests": 1, "prompt_tokens": len(prompt_ids(request)), "completion_tokens": len(ids)}
        return Reply(text, ids, log_probs[: len(ids)], cut_off=ids[-1] not in self._ends, usage=usage)

    def _generation_config(self, sampling: Sampling) -> GenerationConfig:
        """A configuration that sets every option that the model's own file could set differently."""
        how = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": max(0, sampling.top_k)}
        return GenerationConfig(
            max_new_tokens=sampling.max_tokens,
            do_sample=not sampling.greedy,
            repetition_penalty=1.0,
            num_beams=1,
            eos_token_id=sorted(self._ends),
            pad_token_id=self._pad,
            **({} if sampling.greedy else how),
        )

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        self.position += 1
        if self.seed is None:
            yield
            return
        device = self.model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed * 1_000_003 + self.position)
            yield

    def close(self) -> None:
        """See :meth:`Backend.close`; the model goes with its last reference."""


class SampledLogProbs(LogitsProcessor):
    """Records the log-probability of every token that ``generate`` samples, without changing the logits.

    ``generate`` calls it before every token with the logits and all tokens so far, so that logits of only one step are
    kept.
    """

    def __init__(self, temperature: float) -> None:
        """Divide logits by this temperature."""
        self._temperature = temperature
        self._steps: list[Tensor] = []
        self._next: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Look up the newest token in the last step's probabilities, and keep this step's."""
        self._note(input_ids[:, -1])
        self._next = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        return scores

    def log_probs(self, sampled: Tensor) -> Tensor:
        """The log-probabilities of all sampled tokens, ``(batch, tokens)``; called once, after ``generate``."""
        self._note(sampled[:, -1])
        return torch.stack(self._steps, dim=1)

    def _note(self, tokens: Tensor) -> None:
        if self._next is not None:
            self._steps.append(self._next.gather(1, tokens[:, None])[:, 0])
            self._next = None


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode within the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def load_model(config: Any, device: torch.device) -> Any:
    """The model of a configuration.

    Raises:
        ConfigError: There is no such model, or its context is shorter than the configured one.
    """
    path = model_path(config)
    name = as_config(config).actor.hf.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    dtype = name if name == "auto" else getattr(torch, name)
    check_local(model_key(config), path)
    try:
        described = AutoConfig.from_pretrained(path)
        context = getattr(described, "max_position_embeddings", None)
        check_context(as_config(config).actor_rollout_ref.rollout.max_model_len, context, path)
        model: Any = AutoModelForCausalLM.from_pretrained(path, config=described, dtype=dtype)
        return model.to(device)
    except ConfigError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model {path!r} of the 'hf' backend cannot be loaded: {one_line(error)}") from error


def read_device(config: Any) -> torch.device:
    """``actor.hf.device``; if it is null, a GPU if there is one.

    Raises:
        ConfigError: There is no such device.
    """
    name = as_config(config).actor.hf.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"configuration key 'actor.hf.device' is {name!r}, which cannot be used here: {one_line(error)[:200]}"
        ) from error
    return device
