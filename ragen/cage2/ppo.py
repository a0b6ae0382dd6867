"""PPO (Schulman et al. 2017) for a defender conditioned on its workflow, over parallel environments.

The network's input is the 52 bits of the observation and the 25 numbers of the workflow's code. An update uses
``update_steps`` steps of all environments as one batch, for ``K_epochs`` passes. Returns are standardized; an advantage
is the return minus the critic's current value. If an episode is truncated, by its limit of steps or by the end of the
batch, the critic estimates the value of the rest; its output is a standardized return, and is converted with the scale
of the previous update (0 before the first). Compliance with the workflow is rewarded by the change of its value; see
:mod:`ragen.cage2.workflow`.

Actions are drawn from the policy's own generator: they depend only on its seed and the observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ragen.cage2.buffer import ChosenActions, ParallelTrajectoryBuffer
from ragen.cage2.layout import N_ACTIONS
from ragen.cage2.workflow import Compliance, WorkflowManager
from ragen.errors import ConfigError, InputError
from ragen.extras import needs
from ragen.validity import is_valid

with needs("cage2", "the policy of a workflow search"):
    import torch
    from torch import Tensor, nn
    from torch.distributions import Categorical

    from ragen import ppo

HIDDEN = 64
VALUE_COEF, ENTROPY_COEF, GRAD_CLIP = 0.5, 0.01, 0.5


class ActorCritic(nn.Module):
    """Two separate networks with two hidden layers and tanh."""

    def __init__(self, inputs: int) -> None:
        """Draw weights from torch's global generator."""
        super().__init__()
        self.actor = _network(inputs, N_ACTIONS)
        self.critic = _network(inputs, 1)

    def evaluate(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies, and values of standardized returns; ``(rows,)`` each."""
        chances = Categorical(logits=self.actor(inputs))
        return chances.log_prob(actions), chances.entropy(), self.critic(inputs).squeeze(-1)


class ParallelOrderConditionedPPO:
    """Plays n environments with one workflow, and learns from them.

    Attributes:
        policy: The networks.
        optimizer: Their optimizer.
        buffer: The steps since the last update.
        compliance: Counts fixes in the current episodes.
        return_mean, return_std: The scale of the critic's output.
    """

    def __init__(
        self,
        input_dims: int = 52,
        n_envs: int = 25,
        lr: float = 0.002,
        betas: tuple[float, float] = (0.9, 0.99),
        gamma: float = 0.99,
        K_epochs: int = 4,
        eps_clip: float = 0.2,
        workflow_order: Sequence[str] | None = None,
        workflow_manager: WorkflowManager | None = None,
        alignment_alpha: float = 10.0,
        alignment_beta: float = 10.0,
        update_steps: int = 100,
        *,
        compliance_definition: str = "first_compromised",
        seed: int = 0,
    ) -> None:
        """Create an untrained policy.

        Args:
            input_dims: Width of an observation.
            n_envs: Number of environments that it plays.
            lr: Adam's learning rate.
            betas: Adam's betas.
            gamma: Discount factor per step.
            K_epochs: Passes over the batch in an update.
            eps_clip: PPO's clip range of the probability ratio.
            workflow_order: The workflow; None for the types in the order of their indices.
            workflow_manager: The list of workflows; None for a new one.
            alignment_alpha: The value of full compliance with the workflow.
            alignment_beta: The cost of full violation.
            update_steps: Steps of all environments for an update.
            compliance_definition: The fixes that comply; see :mod:`ragen.cage2.workflow`.
            seed: Seed of weights and actions.

        Raises:
            ConfigError: A number is too small.
            WorkflowError: The order is invalid.
        """
        for name, number in (("n_envs", n_envs), ("K_epochs", K_epochs), ("update_steps", update_steps)):
            if number < 1:
                raise ConfigError(f"{name} = {number}: expected at least 1.")
        manager = workflow_manager or WorkflowManager()
        self.workflow_order = manager.checked(manager.types if workflow_order is None else workflow_order)
        self.n_envs, self.gamma, self.update_steps = n_envs, gamma, update_steps
        self._epochs, self._clip, self._input_dims = K_epochs, eps_clip, input_dims
        self._code = manager.order_to_onehot(self.workflow_order)
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = ActorCritic(input_dims + len(self._code))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr, betas=betas)
        self.buffer = ParallelTrajectoryBuffer(n_envs)
        self.compliance = Compliance(
            n_envs, self.workflow_order, compliance_definition, alignment_alpha, alignment_beta
        )
        self.return_mean, self.return_std = 0.0, 1.0

    def get_actions(self, states: np.ndarray) -> ChosenActions:
        """Choose an action for each environment.

        Args:
            states: Observations, ``(n, input_dims)``.

        Returns:
            Actions int64 ``(n,)``, which keep the states and their log-probabilities.

        Raises:
            InputError: The shape is wrong.
        """
        if states.shape != (self.n_envs, self._input_dims):
            raise InputError(f"states of shape {states.shape}: expected ({self.n_envs}, {self._input_dims}).")
        with torch.no_grad():
            chances = Categorical(logits=self.policy.actor(self._inputs(states)))
        actions = torch.multinomial(chances.probs, 1, generator=self._generator).squeeze(1)
        chosen = actions.numpy().view(ChosenActions)
        vars(chosen).update(agent=self, states=states.copy(), log_probs=chances.log_prob(actions).numpy())
        return chosen

    def values_of(self, states: np.ndarray) -> np.ndarray:
        """The critic's expected discounted returns from states, in units of reward: float64, ``(rows,)``."""
        with torch.no_grad():
            standardised = self.policy.critic(self._inputs(states)).squeeze(-1).double().numpy()
        return self.return_mean + self.return_std * standardised

    def record(
        self, actions: ChosenActions, rewards: np.ndarray, dones: np.ndarray, infos: Sequence[Mapping[str, Any]]
    ) -> list[tuple[float, int] | None]:
        """Store a step of every environment, with the reward for compliance with the workflow.

        The steps of an episode whose environment failed are not learned from.

        Args:
            actions: The result of :meth:`get_actions`.
            rewards: The environments' rewards.
            dones: Whether an episode ended with the step.
            infos: Infos with ``compromised_before``, and at an end ``truncated`` and ``final_observation``; with
                ``env_error`` if the environment failed.

        Returns:
            For each environment whose episode ended, its rate of compliance and number of fixes; None for the others.
        """
        aligned = self.compliance.step(actions, np.array([info["compromised_before"] for info in infos]))
        cut_values = np.zeros(self.n_envs)
        for env_id, info in enumerate(infos):
            if dones[env_id] and info["truncated"]:
                cut_values[env_id] = self.values_of(info["final_observation"][None])[0]
        paid = np.asarray(rewards, np.float64) + aligned
        self.buffer.add(actions.states, actions, paid, dones, cut_values=cut_values)
        for env_id, done in enumerate(dones):
            if done and not is_valid(infos[env_id]):
                self.buffer.forget_episode(env_id)
        return [self.compliance.end(env_id) if done else None for env_id, done in enumerate(dones)]

    @property
    def should_update(self) -> bool:
        """Whether there are enough steps for an update."""
        return len(self.buffer) >= self.update_steps

    def update(self, next_states: np.ndarray | None = None) -> dict[str, float]:
        """Update the policy with the buffer's steps, and empty the buffer.

        Args:
            next_states: The current observations, ``(n, input_dims)``, for the values of continuing episodes; None
                takes the states of the last step instead.

        Returns:
            Means over the passes: ``policy_loss``, ``value_loss``, ``entropy``. Empty if there is no valid step.

        Raises:
            StateError: The buffer is empty.
        """
        batch = self.buffer.get_trajectories()
        if next_states is None:
            next_states = batch["states"][-self.n_envs :]
        valid = batch["valid"]
        if not valid.any():
            self.buffer.reset()
            return {}
        returns = self.buffer.compute_returns(self.gamma, self.values_of(next_states))
        self.return_mean, self.return_std = returns[valid].mean(), returns[valid].std() + 1e-7
        targets = ((returns - self.return_mean) / self.return_std).astype(np.float32)
        inputs, actions = self._inputs(batch["states"]), torch.from_numpy(batch["actions"])
        before, goals, counted = map(torch.from_numpy, (batch["log_probs"], targets, valid))
        passes = [ppo.Batch(inputs, actions, before, None, goals, counted)] * self._epochs
        self.buffer.reset()
        return ppo.update(self.policy, self.optimizer, passes, self._clip, VALUE_COEF, ENTROPY_COEF, GRAD_CLIP)

    def _inputs(self, states: np.ndarray) -> Tensor:
        """Observations followed by the workflow's code."""
        rows = np.asarray(states, np.float32)
        return torch.from_numpy(np.hstack((rows, np.broadcast_to(self._code, (len(rows), len(self._code))))))


def _network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)
    )
