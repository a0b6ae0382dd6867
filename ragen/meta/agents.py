"""Three kinds of agents, in torch: without memory, with memory, and with memory only in the critic.

``act`` takes a batch, and its result for a row does not depend on the content of the other rows. Noise may be passed
in, so that an agent's actions are determined by the rollout.
"""

from __future__ import annotations

import enum
from typing import Any

from gymnasium.spaces import Box, Discrete

from ragen.errors import ConfigError
from ragen.extras import needs

with needs("meta", "an agent of meta-RL"):
    import torch
    from torch import Tensor, nn
    from torch.distributions import Distribution, Independent, Normal, OneHotCategorical


State = Any  # a GRU's ``(1, batch, hidden)``, or an LSTM's pair of them


class AGENT_ARCHS(enum.StrEnum):
    """The part that has memory: none, the agent, or only its critic."""

    Markov = "Markov"
    Memory = "Memory"
    Memory_Markov = "Memory_Markov"


class PolicyHead(nn.Module):
    """A distribution over actions: one-hot for discrete ones, a Gaussian for those of a ``Box``."""

    def __init__(self, width: int, size: int, is_discrete: bool) -> None:
        """Build it, for ``width`` features and actions of ``size`` numbers."""
        super().__init__()
        self.mean = nn.Linear(width, size)
        nn.init.orthogonal_(self.mean.weight, 0.01)
        nn.init.zeros_(self.mean.bias)
        self.log_std = None if is_discrete else nn.Parameter(torch.zeros(size))

    def forward(self, features: Tensor) -> Distribution:
        """The distribution of actions ``(..., size)``."""
        mean = self.mean(features)
        if self.log_std is None:
            return OneHotCategorical(logits=mean, validate_args=False)
        return Independent(Normal(mean, self.log_std.exp(), validate_args=False), 1, validate_args=False)

    def act(self, features: Tensor, deterministic: bool, noise: Tensor | None) -> Tensor:
        """Actions ``(..., size)``; ``noise`` is uniform over (0, 1) for discrete ones, else standard normal."""
        if deterministic or noise is None:
            chances = self(features)
            return chances.mode if deterministic else chances.sample()
        mean = self.mean(features)
        if self.log_std is not None:
            return mean + self.log_std.exp() * noise
        best = (mean - torch.log(-torch.log(noise.clamp(1e-9, 1 - 1e-7)))).argmax(-1)  # Gumbel's trick
        return nn.functional.one_hot(best, mean.shape[-1]).to(mean.dtype)


class _Agent(nn.Module):
    """The base class of agents.

    Attributes:
        arch: Its kind.
        action_dim: Size of an action (one-hot, if it is discrete).
    """

    arch: AGENT_ARCHS

    def __init__(self, action_space: Any) -> None:
        """Read the space of actions.

        Raises:
            ConfigError: The action space is neither ``Discrete`` nor a ``Box`` of one axis.
        """
        super().__init__()
        self.is_discrete = isinstance(action_space, Discrete)
        if not self.is_discrete and not (isinstance(action_space, Box) and len(action_space.shape) == 1):
            raise ConfigError(f"actions of {action_space}: expected a Discrete space, or a Box of one axis.")
        self.action_dim = int(action_space.n) if self.is_discrete else action_space.shape[0]

    @classmethod
    def of(cls: Any, env: Any, **arguments: Any) -> Any:
        """An agent for an environment."""
        return cls(env.observation_space.shape[0], env.action_space, **arguments)


class MarkovAgent(_Agent):
    """Acts on the observation: a perceptron."""

    arch = AGENT_ARCHS.Markov

    def __init__(self, observation_dim: int, action_space: Any, hidden: int = 128) -> None:
        """Build it."""
        super().__init__(action_space)
        self.actor = nn.Sequential(nn.Linear(observation_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.policy = PolicyHead(hidden, self.action_dim, self.is_discrete)

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
        super().__init__(action_space)
        self._products, self._is_pair = products, rnn == "lstm"
        inputs = self.action_dim * (1 + products) + 1 + observation_dim
        self.rnn: nn.GRU | nn.LSTM = {"gru": nn.GRU, "lstm": nn.LSTM}[rnn](inputs, hidden)
        self.policy = PolicyHead(hidden, self.action_dim, self.is_discrete)

    def get_initial_info(self) -> tuple[Tensor, Tensor, State]:
        """The initial previous action ``(1, A)``, reward ``(1, 1)`` and state: zeros."""
        state = torch.zeros(1, 1, self.rnn.hidden_size)
        return torch.zeros(1, self.action_dim), torch.zeros(1, 1), (state, state) if self._is_pair else state

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
            noise: The noise to sample with; see :class:`PolicyHead`.

        Returns:
            The actions and the new state, which is a list if ``prev_internal_state`` was.
        """
        state, is_list = prev_internal_state, isinstance(prev_internal_state, list)
        if is_list and self._is_pair:
            state = tuple(torch.cat(part, 1) for part in zip(*state, strict=True))
        elif is_list:
            state = torch.cat(state, 1)
        features, state = self.features(torch.cat((prev_action, reward, obs), -1).unsqueeze(0), state)
        if is_list and self._is_pair:
            state = list(zip(*(part.split(1, 1) for part in state), strict=True))
        elif is_list:
            state = list(state.split(1, 1))
        return (self.policy.act(features.squeeze(0), deterministic, noise),), state

    def features(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The recurrent network's output and state after steps ``(steps, batch, A + 1 + d)``.

        A step is the previous action, the previous reward and the observation; then, if configured, their product.
        """
        size = self.action_dim
        products = inputs[..., :size] * inputs[..., size : size + 1]
        whole = torch.cat((inputs, products), -1) if self._products else inputs
        return self.rnn(whole, state)  # type: ignore[no-any-return]
