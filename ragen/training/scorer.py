"""The log-probability of thoughts after prompts, by the model that is trained.

Each prompt is read once; its keys and values are kept, and all thoughts are scored from there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ragen.extras import needs

with needs("train", "training"):
    import torch

Ids = Sequence[int]
_LOGITS = 2**28  # numbers that a batch's logits may have: 1 GiB of float32


class HfScorer:
    """A causal language model of transformers in this process.

    Attributes:
        context: Maximum number of tokens of prompt and thought together; None if unknown.
    """

    def __init__(self, model: Any, temperature: float = 1.0) -> None:
        """Take a model.

        Args:
            model: On the device where it is to run.
            temperature: Divides the logits, as it did when thoughts were sampled.
        """
        self.model = model
        self._temperature = temperature
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)

    def log_probs(self, prompts: Sequence[Ids], thoughts: Sequence[Ids]) -> np.ndarray:
        """Summed log-probability of each thought after each prompt, float64 ``(thoughts, prompts)``.

        Args:
            prompts: Token ids, at least one of each prompt.
            thoughts: Token ids, at least one of each thought.
        """
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
