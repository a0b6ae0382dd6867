"""Training with one workflow: a policy plays its environments and learns, until it complies or has played enough.

What comes of it follows from the settings, the workflow, the number of the iteration and what its environments show,
so that a search that was stopped plays a workflow anew that it had not finished, and gets what it would have got.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ragen.cage2.ppo import ParallelOrderConditionedPPO
from ragen.cage2.results import Episode, WorkflowResult, over_last
from ragen.cage2.settings import SearchSettings
from ragen.cage2.workflow import WorkflowManager, order_text
from ragen.errors import EnvError

LEAST_FIXES = 10  # of a whole training, before its rate of compliance is believed
SLEEP = 0  # the action of who has finished


class WorkflowTraining:
    """One training. It is given what its environments show, and says what to do there.

    Attributes:
        iteration: Which of the search it is.
        agent: Who plays and learns.
        episodes: What each environment has played to its end.
        is_done: Whether it has ended.
    """

    def __init__(
        self, settings: SearchSettings, order: Sequence[str], iteration: int, manager: WorkflowManager | None = None
    ) -> None:
        """Make a new policy for a workflow."""
        self.settings, self.iteration = settings, iteration
        self.agent = ParallelOrderConditionedPPO(
            n_envs=settings.n_envs,
            lr=settings.lr,
            gamma=settings.gamma,
            K_epochs=settings.k_epochs,
            eps_clip=settings.eps_clip,
            workflow_order=order,
            workflow_manager=manager,
            alignment_alpha=settings.alignment_alpha,
            alignment_beta=settings.alignment_beta,
            update_steps=settings.update_every_steps,
            compliance_definition=settings.compliance_definition,
            seed=seed_of(settings.seed, iteration, "policy"),
        )
        self.episodes: list[list[Episode]] = [[] for _ in range(settings.n_envs)]
        self.is_done = False
        self._stopped_early = False
        self._fixes = self._failed = 0
        self._last_error: Any = None
        self._ended = np.zeros(settings.n_envs, np.int64)
        self._returns = np.zeros(settings.n_envs)
        self._since_update: list[Episode] = []
        self._updates: list[dict[str, float | None]] = []
        self._chosen: tuple[np.ndarray, ...] = ()

    def act(self, states: np.ndarray) -> np.ndarray:
        """What to do in each environment, ``(n,)``; nothing where the training has ended.

        Args:
            states: What they show, ``(n, 52)``.
        """
        if self.is_done:
            return np.full(self.settings.n_envs, SLEEP)
        actions, log_probs, values = self.agent.get_actions(states)
        self._chosen = (np.array(states), actions, log_probs, values)
        return actions

    def learn(
        self, next_states: np.ndarray, rewards: np.ndarray, dones: np.ndarray, infos: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Take what came of the actions; whether the policy was updated by it.

        Args:
            next_states: What is seen now, ``(n, 52)``.
            rewards: What the actions got, ``(n,)``.
            dones: Whether an episode ended with them, ``(n,)``.
            infos: As the environments gave them.
        """
        if self.is_done:
            return False
        states, actions, log_probs, values = self._chosen
        ended = self.agent.record(states, actions, rewards, dones, infos, log_probs, values)
        self._returns += rewards
        for env_id, compliance in enumerate(ended):
            if compliance is None:
                continue
            self._ended[env_id] += 1
            if infos[env_id].get("env_error"):
                self._failed += 1
                self._last_error = infos[env_id]["env_error"]
            else:
                episode = Episode(float(self._returns[env_id]), compliance)
                self.episodes[env_id].append(episode)
                self._since_update.append(episode)
                self._fixes += compliance.fixes
            self._returns[env_id] = 0.0
        if not self.agent.should_update:
            return False
        self._note(self.agent.update(next_states))
        self._stopped_early = self.complies()
        self.is_done = self._stopped_early or self.played >= self.settings.train_episodes_per_env
        return True

    @property
    def played(self) -> int:
        """Episodes of the environment that has played fewest, with those that failed."""
        return int(self._ended.min())

    def complies(self) -> bool:
        """Whether the rule to end early holds.

        Each environment has played ``min_episodes``; there were ten fixes; and the mean over environments of the last
        five episodes' rates is at least ``compliance_threshold``, an episode without a fix counting 0.5.
        """
        enough = min(len(each) for each in self.episodes) >= self.settings.min_episodes
        if not enough or self._fixes < LEAST_FIXES:
            return False
        return over_last(self.episodes)["compliance"] >= self.settings.compliance_threshold

    def last_update(self) -> dict[str, float | None]:
        """What was played before the last update, and what that learned; empty before the first."""
        return self._updates[-1] if self._updates else {}

    def result(self, simulator: str) -> WorkflowResult:
        """What it came to.

        Args:
            simulator: Who played the environments.

        Raises:
            EnvError: So many episodes failed that it came to nothing.
        """
        last = over_last(self.episodes)
        if not math.isfinite(last["noise"]):
            raise EnvError(
                f"of workflow {order_text(self.agent.workflow_order)}, {self._failed} episodes failed, and fewer than "
                f"two environments have one that did not: there is no result. The last one: {self._last_error}"
            )
        return WorkflowResult(
            iteration=self.iteration,
            workflow=list(self.agent.workflow_order),
            train_reward=last["reward"],
            noise=last["noise"],
            train_compliance=last["compliance"],
            coverage=last["coverage"],
            avg_episodes_trained=float(np.mean([len(each) for each in self.episodes])),
            stopped_early=self._stopped_early,
            failed_episodes=self._failed,
            n_envs=self.settings.n_envs,
            simulator=simulator,
            updates=self._updates,
        )

    def _note(self, learnt: Mapping[str, float]) -> None:
        means = over_last([[each] for each in self._since_update])
        seen = {name: None if math.isnan(means[name]) else means[name] for name in ("reward", "compliance", "coverage")}
        self._updates.append({"episodes": float(np.mean([len(each) for each in self.episodes])), **seen, **learnt})
        self._since_update.clear()


def seed_of(seed: int, iteration: int, purpose: str) -> int:
    """A seed for a part of a search, apart from those of all others."""
    return int(np.random.SeedSequence([seed, iteration, *purpose.encode()]).generate_state(1)[0])
