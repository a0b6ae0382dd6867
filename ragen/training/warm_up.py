"""Supervised warm-up: the model learns the format of replies from demonstrations of scripted players.

Demonstrations come from the usual rollout loop: ``LLMAgentProxy`` with the scripted backend. Some of them are random on
purpose (``warm_up.random``), so that reinforcement learning has something to improve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from ragen.config import as_config
from ragen.extras import needs
from ragen.llm_agent import LLMAgentProxy, groups_of
from ragen.llm_agent.backends import ScriptedBackend
from ragen.training.log_probs import log_probs_and_entropies
from ragen.training.training_batch import batch_of_rows
from ragen.training.trajectories import TokenRow
from ragen.validity import check_share, env_error

if TYPE_CHECKING:
    from ragen.config import Config
    from ragen.config import WarmUp as WarmUpKeys

with needs("train", "`ragen train`"):
    import torch
    from transformers import PreTrainedModel

    from ragen.ppo import optimiser_step


def demonstrations(config: Any, tokenizer: Any, settings: WarmUpKeys) -> list[TokenRow]:
    """Play the demonstrations; deterministic for a configuration.

    Args:
        config: The whole configuration.
        tokenizer: The model's.
        settings: Their number and quality.

    Raises:
        EnvsFailedError: More than half of them failed with their environments.
    """
    from verl import DataProto

    config = demonstration_config(config, settings)
    with LLMAgentProxy(config, ScriptedBackend.from_config(config, tokenizer), tokenizer) as proxy:
        rollouts = proxy.rollout(DataProto(meta_info={}))
    check_share([env_error(state) for state in proxy.rollout_states])
    rows = [TokenRow.formulated(rollouts, place) for place in range(len(rollouts))]
    return [row for row in rows if any(row.mask)]


def demonstration_config(config: Any, settings: WarmUpKeys) -> Config:
    """The configuration of demonstrations: many groups of one, with the tags of replies included in the loss."""
    whole = as_config(config)
    shares = [each.number for each in groups_of(whole, "train")]
    groups = [max(1, settings.groups * share // sum(shares)) for share in shares]
    section, actor = "es_manager.train", "actor.scripted"
    return whole.changed(
        {
            f"{section}.env_configs.n_groups": groups,
            f"{section}.env_groups": sum(groups),
            f"{section}.group_size": 1,
            "seed.train": settings.seed,
            "agent_proxy.training_tokens": "text",
            f"{actor}.random": settings.random,
            f"{actor}.malformed": settings.malformed,
            f"{actor}.seed": settings.seed,
        }
    )


class WarmUp:
    """Supervised learning on demonstrations."""

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Sequence[TokenRow],
        settings: WarmUpKeys,
        pad_id: int,
        seed: int = 0,
        max_tokens: int = 16_384,
    ) -> None:
        """Prepare the warm-up.

        Args:
            model: The model, which is modified in place.
            rows: The demonstrations.
            settings: The settings of the warm-up.
            pad_id: The padding token.
            seed: Seed of the order of demonstrations.
            max_tokens: Maximum number of tokens of a micro-batch.
        """
        self.model = model
        self.settings = settings
        self._rows = list(rows)
        self._pad_id = pad_id
        self._seed = seed
        self._max_tokens = max_tokens
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)

    def step(self, number: int) -> dict[str, float]:
        """Train on one batch.

        Args:
            number: The number of the step, from 0; determines the demonstrations together with the seed.

        Returns:
            ``warm_up/loss`` (mean negative log-probability of a reply's token, in nats), ``warm_up/lr`` and
            ``warm_up/grad_norm``.
        """
        chooser = Random(f"{self._seed}/warm_up/{number}")
        batch = batch_of_rows(chooser.sample(self._rows, min(self.settings.batch_size, len(self._rows))), self._pad_id)
        tokens = batch.response_mask.sum()
        total = 0.0
        for rows in batch.micro_batches(range(len(batch)), self._max_tokens):
            log_probs, _ = log_probs_and_entropies(self.model, batch.select(rows))
            loss = -log_probs.sum() / tokens
            loss.backward()
            total += loss.item()
        rate = self.learning_rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = optimiser_step(self.optimizer, self.model, grad_clip=1.0)
        return {"warm_up/loss": total, "warm_up/lr": rate, "warm_up/grad_norm": norm}

    def learning_rate(self, number: int) -> float:
        """The learning rate of a step."""
        steps = self.settings.steps
        rising = min(1.0, (number + 1) / max(1, steps // 10))
        falling = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * number / max(1, steps)))
        return self.settings.lr * rising * falling
