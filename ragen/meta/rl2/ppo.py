"""PPO (Schulman et al. 2017) over whole rollouts of an agent with a memory.

A rollout is treated as one episode: its end is terminal, whatever ended it, since no step of the task follows.
Advantages are GAE's (Schulman et al. 2016) from the agent's values before the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen.extras import needs
from ragen.meta.agents import MemoryAgent
from ragen.meta.rl2.settings import PPOSettings

with needs("meta", "an agent of meta-RL"):
    import torch
    from torch import Tensor, nn

    from ragen import ppo


@dataclass
class Batch:
    """Rollouts as arrays ``(steps, rollouts, ...)``; shorter ones are padded.

    Attributes:
        inputs: Previous action, previous reward, observation.
        actions: As returned by the agent.
        rewards: One per step.
        mask: 1 for a step, 0 for padding.
    """

    inputs: Tensor
    actions: Tensor
    rewards: Tensor
    mask: Tensor

    @classmethod
    def of(cls, episodes: Sequence[dict[str, np.ndarray]], agent: MemoryAgent) -> Batch:
        """A batch of the episodes of an :class:`~ragen.meta.rollouts.EpisodeBuffer`."""
        steps = max(len(each["rewards"]) for each in episodes)
        padded = {name: _padded([each[name] for each in episodes], steps) for name in ("observations", "rewards")}
        mask = _padded([np.ones_like(each["rewards"]) for each in episodes], steps).squeeze(-1)
        actions = _padded([each["actions"] for each in episodes], steps)
        if agent.is_discrete:
            actions = nn.functional.one_hot(actions.squeeze(-1).long(), agent.action_dim).float()
        before = torch.cat((actions, padded["rewards"]), -1)
        before = torch.cat((torch.zeros_like(before[:1]), before[:-1]))
        inputs = torch.cat((before, padded["observations"]), -1)
        return cls(inputs, actions, padded["rewards"].squeeze(-1), mask)

    def rows(self, chosen: Tensor) -> Batch:
        """Some of the rollouts."""
        return Batch(self.inputs[:, chosen], self.actions[:, chosen], self.rewards[:, chosen], self.mask[:, chosen])


class PPO:
    """The PPO update of an agent.

    Attributes:
        agent: The agent.
        optimizer: Its optimizer.
    """

    def __init__(self, agent: MemoryAgent, settings: PPOSettings) -> None:
        """Create the optimizer of an agent."""
        self.agent = agent
        self.settings = settings
        self.optimizer = torch.optim.Adam(agent.parameters(), lr=settings.lr, eps=1e-5)

    def update(self, episodes: Sequence[dict[str, np.ndarray]], progress: float, seed: Any) -> dict[str, float]:
        """Update the agent with rollouts that it has just played.

        Args:
            episodes: The rollouts.
            progress: Completed fraction of the training, for decay schedules.
            seed: Seed of the order of rollouts.

        Returns:
            Means over all its passes.
        """
        settings = self.settings
        batch = Batch.of(episodes, self.agent)
        with torch.no_grad():
            logs_before, _, values = self.agent.evaluate(batch.inputs, batch.actions)
            advantages = ppo.gae(
                batch.rewards * settings.reward_scale, values * batch.mask, batch.mask, settings.gamma, settings.lam
            )
            returns = advantages + values
            if settings.center_steps:
                advantages = advantages - (advantages * batch.mask).sum(1, True) / batch.mask.sum(1, True).clamp(min=1)
            advantages = _normalized(advantages, batch.mask)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * (1.0 - progress if settings.decay_lr else 1.0)
        entropy_coef = settings.entropy_coef * (1.0 - progress)
        rng = np.random.default_rng(seed)
        metrics: dict[str, list[float]] = {}
        for _ in range(settings.epochs):
            for part in np.array_split(rng.permutation(len(episodes)), min(settings.minibatches, len(episodes))):
                chosen = torch.from_numpy(part)
                logged = self._pass(
                    batch.rows(chosen), logs_before[:, chosen], advantages[:, chosen], returns[:, chosen], entropy_coef
                )
                for name, value in logged.items():
                    metrics.setdefault(name, []).append(value)
        return {name: float(np.mean(values)) for name, values in metrics.items()}

    def _pass(
        self, batch: Batch, logs_before: Tensor, advantages: Tensor, returns: Tensor, entropy_coef: float
    ) -> dict[str, float]:
        logs, entropies, values = self.agent.evaluate(batch.inputs, batch.actions)
        found = ppo.losses(logs, logs_before, advantages, entropies, values, returns, self.settings.clip, batch.mask)
        found.total(0.5 * self.settings.value_coef, entropy_coef).backward()  # type: ignore[no-untyped-call]
        ppo.optimiser_step(self.optimizer, self.agent, self.settings.grad_clip)
        return {"policy_loss": found.policy.item(), "value_loss": found.value.item(), "entropy": found.entropy.item()}


def _normalized(values: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum()
    mean = (values * mask).sum() / count
    spread = (((values - mean) * mask).square().sum() / count).sqrt()
    return (values - mean) / (spread + 1e-8) * mask


def _padded(arrays: Sequence[np.ndarray], steps: int) -> Tensor:
    """``(steps, rollouts, width)`` of arrays ``(steps or fewer, width)``."""
    whole = np.zeros((steps, len(arrays), arrays[0].shape[1]), np.float32)
    for column, array in enumerate(arrays):
        whole[: len(array), column] = array
    return torch.from_numpy(whole)
