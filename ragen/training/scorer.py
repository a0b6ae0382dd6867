"""The log-probability of thoughts after prompts, by the model that is trained.

Each prompt is read once; its keys and values are kept, and all thoughts are scored from there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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
        device, words = self.model.device, self.model.get_output_embeddings().weight.shape[0]
        lengths = torch.tensor([[len(thought)] for thought in thoughts], device=device)
        longest = int(lengths.max())
        ids = torch.tensor([[*thought, *[0] * (longest - len(thought))] for thought in thoughts], device=device)
        counts = torch.arange(longest, device=device) < lengths
        at_once = max(1, _LOGITS // (longest * words))
        was_training = self.model.training
        self.model.eval()
        columns = []
        try:
            with torch.no_grad():
                for prompt in prompts:
                    read = self.model(torch.tensor([list(prompt)], device=device), use_cache=True, logits_to_keep=1)
                    parts = [self._after(read, part) for part in ids.split(at_once)]
                    columns.append((torch.cat(parts).double() * counts).sum(-1).cpu().numpy())
        finally:
            self.model.train(was_training)
        return np.stack(columns, axis=-1)

    def _after(self, read: Any, ids: torch.Tensor) -> torch.Tensor:
        """The log-probability of each token of some thoughts after a prompt that was read."""
        logits = read.logits[:, -1:].expand(len(ids), -1, -1)
        if ids.shape[1] > 1:  # padding stands behind what counts, so that a causal model needs no mask
            cache = copy.deepcopy(read.past_key_values)
            cache.batch_repeat_interleave(len(ids))
            rest = self.model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True).logits
            logits = torch.cat([logits, rest], dim=1)
        logits = logits.float() / self._temperature
        return logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)
