"""Three kinds of agents, in torch: without memory, with memory, and with memory only in the critic.

``act`` takes a batch, and its result for a row does not depend on the content of the other rows. Noise may be passed
in, so that an agent's actions are determined by the rollout.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from ragen.errors import ConfigError
from ragen.extras import needs

with needs("meta", "an agent of meta-RL"):
    import torch
    from torch import Tensor, nn


State = Any  # a GRU's ``(1, batch, hidden)``, or an LSTM's pair of them


class AGENT_ARCHS(enum.StrEnum):
    """The part that has memory: none, the agent, or only its critic."""

    Markov = "Markov"
    Memory = "Memory"
    Memory_Markov = "Memory_Markov"


class Policy(nn.Module):
    """A distribution over actions: one-hot for discrete ones, a Gaussian for those of a ``Box``."""

    def __init__(self, width: int, size: int, is_discrete: bool) -> None:
        """Build it, for ``width`` features and actions of ``size`` numbers."""
        super().__init__()
        self.size = size
        self.mean = nn.Linear(width, size)
        nn.init.orthogonal_(self.mean.weight, 0.01)
        nn.init.zeros_(self.mean.bias)
        self.log_std = None if is_discrete else nn.Parameter(torch.zeros(size))

    def act(self, features: Tensor, deterministic: bool, noise: Tensor | None) -> Tensor:
        """Actions ``(..., size)``; ``noise`` is uniform over (0, 1) for discrete ones, else standard normal."""
        mean = self.mean(features)
        if self.log_std is None:
            if not deterministic:
                uniform = torch.rand_like(mean) if noise is None else noise
                mean = mean - torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))  # Gumbel's trick
            return nn.functional.one_hot(mean.argmax(-1), self.size).to(mean.dtype)
        if deterministic:
            return mean
        return mean + self.log_std.exp() * (torch.randn_like(mean) if noise is None else noise)

    def log_prob(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of actions ``(..., size)``, and the distribution's entropy."""
        mean = self.mean(features)
        if self.log_std is None:
            logs = mean.log_softmax(-1)
            return (logs * actions).sum(-1), -(logs.exp() * logs).sum(-1)
        scaled = (actions - mean) / self.log_std.exp()
        constant = self.log_std.sum() + 0.5 * math.log(2 * math.pi) * self.size
        entropy = constant + 0.5 * self.size
        return -0.5 * scaled.square().sum(-1) - constant, entropy.expand(mean.shape[:-1])


class _Agent(nn.Module):
    """The base class of agents.

    Attributes:
        arch: Its kind.
        observation_dim, action_dim: Sizes of an observation and of an action (one-hot, if it is discrete).
    """

    arch: AGENT_ARCHS

    def __init__(self, observation_dim: int, action_space: Any) -> None:
        """Read the spaces.

        Raises:
            ConfigError: The action space is neither ``Discrete`` nor a ``Box`` of one axis.
        """
        super().__init__()
        self.observation_dim = observation_dim
        self.is_discrete = isinstance(action_space, Discrete)
        if not self.is_discrete and not (isinstance(action_space, Box) and len(action_space.shape) == 1):
            raise ConfigError(f"actions of {action_space}: expected a Discrete space, or a Box of one axis.")
        self.action_dim = int(action_space.n) if self.is_discrete else action_space.shape[0]

    @classmethod
    def of(cls, env: Any, **arguments: Any) -> Any:
        """An agent for an environment."""
        return cls(int(np.prod(env.observation_space.shape)), env.action_space, **arguments)


class MarkovAgent(_Agent):
    """Acts on the observation: a perceptron."""

    arch = AGENT_ARCHS.Markov

    def __init__(self, observation_dim: int, action_space: Any, hidden: int = 128) -> None:
        """Build it."""
        super().__init__(observation_dim, action_space)
        self.actor = nn.Sequential(nn.Linear(observation_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.policy = Policy(hidden, self.action_dim, self.is_discrete)

    def act(self, obs: Tensor, deterministic: bool = False, noise: Tensor | None = None) -> tuple[Tensor]:
        """Actions ``(batch, action)`` for observations ``(batch, d)``, in a tuple of one."""
        return (self.policy.act(self.actor(obs), deterministic, noise),)


class MemoryMarkovAgent(MarkovAgent):
    """Acts on the observation; its episodes are stored whole, for a critic with memory."""

    arch = AGENT_ARCHS.Memory_Markov


class MemoryAgent(_Agent):
    """Acts on the whole history: a GRU over (previous action, previous reward, observation).

    This is RL^2 (Duan et al. 2016): what it learns within a rollout is stored in the state of its network.
    """

    arch = AGENT_ARCHS.Memory

    def __init__(
        self, observation_dim: int, action_space: Any, hidden: int = 128, products: bool = False, rnn: str = "gru"
    ) -> None:
        """Build it.

        Args:
            observation_dim: Size of an observation.
            action_space: A ``Discrete`` space, or a ``Box`` of one axis.
            hidden: Width of the recurrent network.
            products: Whether the previous action times its reward is a further input.
            rnn: ``"gru"``, whose state is ``(1, batch, hidden)``, or ``"lstm"``, whose state is a pair of them.
        """
        super().__init__(observation_dim, action_space)
        self._products, self._is_pair = products, rnn == "lstm"
        self.rnn: nn.GRU | nn.LSTM = {"gru": nn.GRU, "lstm": nn.LSTM}[rnn](
            self.action_dim * (1 + products) + 1 + observation_dim, hidden
        )
        self.policy = Policy(hidden, self.action_dim, self.is_discrete)
        self.value = nn.Linear(hidden, 1)

    def get_initial_info(self, batch: int = 1) -> tuple[Tensor, Tensor, State]:
        """The initial previous action ``(batch, A)``, reward ``(batch, 1)`` and state: zeros."""
        state = torch.zeros(1, batch, self.rnn.hidden_size)
        pair = (state, state.clone())
        return torch.zeros(batch, self.action_dim), torch.zeros(batch, 1), pair if self._is_pair else state

    def act(
        self,
        prev_internal_state: State | list[State],
        prev_action: Tensor,
        reward: Tensor,
        obs: Tensor,
        deterministic: bool = False,
        noise: Tensor | None = None,
    ) -> tuple[tuple[Tensor], Any]:
        """Actions ``(batch, A)`` in a tuple of one, and the new state.

        Args:
            prev_internal_state: The state of the batch, or a list of states of one row each.
            prev_action: ``(batch, A)``.
            reward: ``(batch, 1)``.
            obs: ``(batch, d)``.
            deterministic: Whether to take the most likely actions.
            noise: The noise to sample with; see :class:`Policy`.

        Returns:
            The actions and the new state, which is a list if ``prev_internal_state`` was.
        """
        state, is_list = prev_internal_state, isinstance(prev_internal_state, list)
        if is_list:
            parts = [torch.cat(each, 1) for each in zip(*state, strict=True)] if self._is_pair else torch.cat(state, 1)
            state = tuple(parts) if self._is_pair else parts
        features, state = self.rnn(self._shown(torch.cat((prev_action, reward, obs), -1)).unsqueeze(0), state)
        if is_list:
            state = list(
                zip(*(part.split(1, 1) for part in state), strict=True) if self._is_pair else state.split(1, 1)
            )
        return (self.policy.act(features.squeeze(0), deterministic, noise),), state

    def evaluate(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values ``(steps, batch)`` of whole rollouts.

        Args:
            inputs: ``(steps, batch, A + 1 + d)``: previous action, previous reward, observation.
            actions: ``(steps, batch, A)``.
        """
        features, _ = self.rnn(self._shown(inputs))
        logs, entropies = self.policy.log_prob(features, actions)
        return logs, entropies, self.value(features).squeeze(-1)

    def _shown(self, inputs: Tensor) -> Tensor:
        """The network's input: previous action, previous reward, observation, and their product if configured."""
        if not self._products:
            return inputs
        size = self.action_dim
        return torch.cat((inputs, inputs[..., :size] * inputs[..., size : size + 1]), -1)
