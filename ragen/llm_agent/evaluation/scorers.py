"""How likely thoughts are after prompts: by a model in this process, or by a server that scores prompts.

``HfScorer`` reads each prompt once, keeps its keys and values, and scores all thoughts from there. ``ServerScorer``
sends prompt and thought together as token ids to the completions endpoint of an OpenAI-compatible server, and asks for
the log-probabilities of what it sent: with ``echo``, or with vLLM's ``prompt_logprobs`` where ``echo`` returns none.
Servers that return neither are refused, as are chat endpoints and most closed APIs.

Log-probabilities are those of the model itself, at temperature 1 unless a trainer names its own.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from ragen.errors import BackendError, ConfigError
from ragen.extras import needs
from ragen.llm_agent.backends.factory import model_path
from ragen.settings import one_line, setting

if TYPE_CHECKING:
    from ragen.llm_agent.backends.openai import OpenAIBackend

Ids = Sequence[int]
Read = Callable[[Mapping[str, Any], Ids], list[float] | None]
CONCURRENCY = 16
"""Requests that are under way at a time, where ``actor.openai.max_concurrency`` is null."""
_LOGITS = 2**28  # numbers that a batch's logits may have: 1 GiB of float32
_ECHO = {"echo": True, "logprobs": 1}
_PROMPT_LOGPROBS = {"prompt_logprobs": 0}


class Scorer(Protocol):
    """Scores thoughts.

    Attributes:
        name: What stands beside every figure that it gives.
        tokenizer: The model's own.
        context: The most tokens of prompt and thought together; None where that is not known.
    """

    name: str
    tokenizer: Any
    context: int | None

    def log_probs(self, prompts: Sequence[Ids], thoughts: Sequence[Ids]) -> np.ndarray:
        """Summed log-probability of each thought after each prompt, float64 ``(thoughts, prompts)``.

        Args:
            prompts: Token ids, at least one of each prompt.
            thoughts: Token ids, at least one of each thought.
        """
        ...


class HfScorer:
    """A causal language model of transformers in this process; see :class:`Scorer`."""

    def __init__(self, model: Any, tokenizer: Any, name: str, temperature: float = 1.0) -> None:
        """Take a model.

        Args:
            model: On the device where it is to run.
            tokenizer: The model's.
            name: What to call it.
            temperature: Divides the logits, as it did when thoughts were drawn.
        """
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self._temperature = temperature
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any) -> Self:
        """Load ``actor.model``, on ``actor.hf.device`` in ``actor.hf.dtype``.

        Raises:
            ConfigError: It cannot be loaded.
        """
        from ragen.llm_agent.backends.hf import load_model, read_device

        device = read_device(config)
        return cls(load_model(config, device), tokenizer, f"{model_path(config)} (transformers, {device})")

    def log_probs(self, prompts: Sequence[Ids], thoughts: Sequence[Ids]) -> np.ndarray:
        """See :meth:`Scorer.log_probs`."""
        with needs("hf", "a scorer of transformers"):
            import torch

        scores = np.zeros((len(thoughts), len(prompts)))
        batches = list(self._batches(thoughts))
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for column, prompt in enumerate(prompts):
                    for rows, sums in self._after(prompt, thoughts, batches):
                        scores[rows, column] = sums
        finally:
            self.model.train(was_training)
        return scores

    def _after(
        self, prompt: Ids, thoughts: Sequence[Ids], batches: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Sequence[int], np.ndarray]]:
        """The rows of each batch of thoughts, and their sums after a prompt."""
        import torch

        device = self.model.device
        read = self.model(input_ids=torch.tensor([list(prompt)], device=device), use_cache=True, logits_to_keep=1)
        for rows in batches:
            longest = max(len(thoughts[row]) for row in rows)
            padded = [[*thoughts[row], *[0] * (longest - len(thoughts[row]))] for row in rows]
            ids = torch.tensor(padded, device=device)
            logits = read.logits[:, -1:].expand(len(rows), -1, -1)
            if longest > 1:  # padding stands behind what counts, so that a causal model needs no mask
                cache = copy.deepcopy(read.past_key_values)
                cache.batch_repeat_interleave(len(rows))
                rest = self.model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True).logits
                logits = torch.cat([logits, rest], dim=1)
            logits = logits.float() / self._temperature
            each = logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)
            lengths = torch.tensor([len(thoughts[row]) for row in rows], device=device)
            counts = torch.arange(longest, device=device) < lengths[:, None]
            yield rows, (each.double() * counts).sum(-1).cpu().numpy()

    def _batches(self, thoughts: Sequence[Ids]) -> Iterator[list[int]]:
        """Places of thoughts of similar length, as many at a time as their logits have room."""
        words = self.model.get_output_embeddings().weight.shape[0]
        batch: list[int] = []
        for place in sorted(range(len(thoughts)), key=lambda place: -len(thoughts[place])):
            if batch and (len(batch) + 1) * len(thoughts[batch[0]]) * words > _LOGITS:
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch


class ServerScorer:
    """A server; see :class:`Scorer`."""

    def __init__(self, backend: OpenAIBackend, tokenizer: Any) -> None:
        """Take a backend, of which the address, the key and the limits are used.

        Args:
            backend: Whose settings are checked.
            tokenizer: The model's own.
        """
        self._backend, self.tokenizer = backend, tokenizer
        self.name = backend.title
        self.context: int | None = None

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any) -> Self:
        """The server of ``actor.base_url``; the keys are those of ``actor.backend=openai``.

        Raises:
            ConfigError: It cannot be reached or refuses, or ``actor.tokenizer`` does not name the model's tokenizer.
        """
        from ragen.llm_agent.backends.openai import OpenAIBackend

        if setting(config, "actor.tokenizer", str, None) is None:
            raise ConfigError(
                "configuration key 'actor.tokenizer' is null; a server scores token ids, so name its model's own "
                "tokenizer."
            )
        return cls(OpenAIBackend.from_config(config, tokenizer), tokenizer)

    def log_probs(self, prompts: Sequence[Ids], thoughts: Sequence[Ids]) -> np.ndarray:
        """See :meth:`Scorer.log_probs`; a request for each pair.

        Raises:
            BackendError: The server does not score prompts, or does not answer.
        """
        return asyncio.run(self._scored(prompts, thoughts))

    async def _scored(self, prompts: Sequence[Ids], thoughts: Sequence[Ids]) -> np.ndarray:
        slots = asyncio.Semaphore(self._backend.settings.max_concurrency or CONCURRENCY)
        scores = np.zeros((len(thoughts), len(prompts)))
        async with self._backend.new_client().with_options(max_retries=self._backend.settings.max_retries) as client:
            how = await self._way(client, [*prompts[0], *thoughts[0]])

            async def score(row: int, column: int) -> None:
                ids = [*prompts[column], *thoughts[row]]
                async with slots:
                    found = how[1](await self._ask(client, ids, how[0]), ids)
                if found is None:
                    raise BackendError(f"{self.name} sent no log-probabilities of a prompt of {len(ids)} tokens.")
                scores[row, column] = sum(found[len(prompts[column]) :])

            places = [(row, column) for column in range(len(prompts)) for row in range(len(thoughts))]
            await asyncio.gather(*(score(*place) for place in places))  # prompt by prompt: servers keep prefixes
        return scores

    async def _way(self, client: Any, ids: Ids) -> tuple[dict[str, Any], Read]:
        """What to send beside a prompt, and how to read the answer: the first of two ways that works."""
        reasons = []
        for body, read in ((_ECHO, _echoed), (_PROMPT_LOGPROBS, _of_prompt)):
            try:
                if read(await self._ask(client, ids, body), ids) is not None:
                    return body, read
                reasons.append(f"{', '.join(body)}: it sent none")
            except BackendError as error:
                reasons.append(f"{', '.join(body)}: {error}")
        raise BackendError(
            f"{self.name} gives no log-probabilities of prompts ({'; '.join(reasons)}); use vLLM's server, or a local "
            "model with --scorer."
        )

    async def _ask(self, client: Any, ids: Ids, body: Mapping[str, Any]) -> Mapping[str, Any]:
        from openai import OpenAIError

        try:
            answer = await client.completions.with_raw_response.create(
                model=str(self._backend.settings.model),
                prompt=list(ids),
                max_tokens=1,
                temperature=1.0,
                extra_body=dict(body),
            )
            choice = json.loads(answer.content)["choices"][0]
        except (OpenAIError, ValueError, LookupError, TypeError) as error:
            raise BackendError(f"no score: {self._backend.shown(one_line(error))}") from None
        return choice if isinstance(choice, Mapping) else {}


def _echoed(choice: Mapping[str, Any], ids: Ids) -> list[float] | None:
    """Log-probabilities of the tokens that were sent, that of the first is 0; None where they are not there."""
    told = choice.get("logprobs")
    values = told.get("token_logprobs") if isinstance(told, Mapping) else None
    return _whole(values[: len(ids)], ids) if isinstance(values, list) else None


def _of_prompt(choice: Mapping[str, Any], ids: Ids) -> list[float] | None:
    told = choice.get("prompt_logprobs")
    if not isinstance(told, list) or len(told) != len(ids):
        return None
    found = [
        each.get(str(token), {}) if isinstance(each, Mapping) else {} for each, token in zip(told, ids, strict=True)
    ]
    return _whole([each.get("logprob") if isinstance(each, Mapping) else None for each in found], ids)


def _whole(values: Sequence[Any], ids: Ids) -> list[float] | None:
    rest = values[1:]
    if len(values) != len(ids) or not all(isinstance(value, int | float) and math.isfinite(value) for value in rest):
        return None
    return [0.0, *map(float, rest)]
