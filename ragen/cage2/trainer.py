"""A search over workflows: propose an order, train with it, report the result to the search.

The next proposal depends only on the settings and the results so far, and a training only on the settings, the order
and the iteration. A resumed search therefore has the same results as an uninterrupted one, with any number of workers.
One training of a workflow is a :class:`WorkflowTraining`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen.cage2 import results as records
from ragen.cage2.order_search import OrderSearch
from ragen.cage2.ppo import ParallelOrderConditionedPPO
from ragen.cage2.results import Episode, WorkflowResult, over_last
from ragen.cage2.settings import SearchSettings
from ragen.cage2.wrapper import ParallelEnvWrapper
from ragen.config import as_model
from ragen.errors import CheckpointError, EnvError
from ragen.files import new_folder
from ragen.torch_threads import torch_threads
from ragen.validity import check_share, env_error, failure_counts, failures_in_words

LEAST_FIXES = 10  # fixes of a whole training, before its rate of compliance is used


class WorkflowTraining:
    """One training of a workflow.

    Attributes:
        iteration: Its index in the search.
        agent: The agent.
        episodes: The finished episodes of each environment.
    """

    def __init__(self, settings: SearchSettings, order: Sequence[str], iteration: int) -> None:
        """Create a new policy for a workflow."""
        self.settings, self.iteration = settings, iteration
        self.agent = ParallelOrderConditionedPPO(
            n_envs=settings.n_envs,
            lr=settings.lr,
            gamma=settings.gamma,
            K_epochs=settings.k_epochs,
            eps_clip=settings.eps_clip,
            workflow_order=order,
            alignment_alpha=settings.alignment_alpha,
            alignment_beta=settings.alignment_beta,
            update_steps=settings.update_every_steps,
            compliance_definition=settings.compliance_definition,
            seed=seed_of(settings.seed, iteration, "policy"),
        )
        self.episodes: list[list[Episode]] = [[] for _ in range(settings.n_envs)]
        self._errors: list[str | None] = []  # of each finished episode
        self._ended = np.zeros(settings.n_envs, np.int64)

    def play(self, envs: ParallelEnvWrapper, on_update: Callable[[WorkflowTraining], object]) -> WorkflowResult:
        """Train in environments until it complies, or has played its episodes.

        Args:
            envs: The environments.
            on_update: Called after each update of the policy.

        Raises:
            EnvsFailedError: More than half of the episodes so far failed with their environments.
            EnvError: Too many episodes failed for a result.
        """
        states = envs.reset(seed_of(self.settings.seed, self.iteration, "environments"))
        stopped_early = False
        while not stopped_early and self.played < self.settings.train_episodes_per_env:
            for _ in range(self.settings.update_every_steps):
                chosen = self.agent.get_actions(states)
                states, rewards, dones, infos = envs.step(chosen)
                self._note(self.agent.record(chosen, rewards, dones, infos), infos)
            check_share(self._errors)
            self.agent.update(states)
            on_update(self)
            stopped_early = self.complies()
        last, failures = over_last(self.episodes), failure_counts(self._errors)
        if not math.isfinite(last["noise"]):
            raise EnvError(
                f"of workflow {' > '.join(self.agent.workflow_order)}, {sum(failures.values())} episodes failed "
                f"({failures_in_words(self._errors)}), and fewer than two environments have one that did not: there is "
                "no result."
            )
        return WorkflowResult(
            iteration=self.iteration,
            workflow=list(self.agent.workflow_order),
            **last,
            avg_episodes_trained=float(np.mean([len(each) for each in self.episodes])),
            stopped_early=stopped_early,
            failed_episodes=sum(failures.values()),
            n_envs=self.settings.n_envs,
            simulator=envs.simulator,
            failures=failures,
        )

    def _note(self, ended: Sequence[Any], infos: Sequence[Mapping[str, Any]]) -> None:
        for env_id, compliance in enumerate(ended):
            if compliance is not None:
                self._ended[env_id] += 1
                self._errors.append(env_error(infos[env_id]))
                if self._errors[-1] is None:
                    self.episodes[env_id].append(Episode(infos[env_id]["episode"]["r"], compliance))

    @property
    def played(self) -> int:
        """Episodes, including failed ones, of the environment that has played fewest."""
        return int(self._ended.min())

    def complies(self) -> bool:
        """Whether the training may end early.

        Each environment must have played ``min_episodes``; there must be at least ten fixes; and the mean over
        environments of the last five episodes' rates must be at least ``compliance_threshold``.
        """
        fixes = sum(episode.compliance.fixes for each in self.episodes for episode in each)
        if min(map(len, self.episodes)) < self.settings.min_episodes or fixes < LEAST_FIXES:
            return False
        return over_last(self.episodes)["train_compliance"] >= self.settings.compliance_threshold


def seed_of(seed: int, iteration: int, purpose: str) -> int:
    """A seed for a part of a search, independent of all others."""
    return int(np.random.SeedSequence([seed, iteration, *purpose.encode()]).generate_state(1)[0])


class ParallelWorkflowRLTrainer:
    """Searches for the workflow whose defender has the highest return.

    Attributes:
        settings: Its settings.
        folder: The output folder.
        results: Results so far, starting with those of an earlier search in the folder.
        search: The Bayesian optimization.
    """

    def __init__(
        self,
        n_envs: int = 25,
        n_workflows: int = 20,
        train_episodes_per_env: int = 50,
        max_steps: int = 100,
        scenario_path: str | None = None,
        red_agent_type: str | type = "RedMeanderAgent",
        alignment_alpha: float = 50.0,
        alignment_beta: float = 50.0,
        gp_beta: float = 2.0,
        checkpoint_dir: str | None = None,
        compliance_threshold: float = 0.95,
        min_episodes: int = 10,
        update_every_steps: int = 25,
        **more: Any,
    ) -> None:
        """Prepare a search, or resume the one in ``checkpoint_dir`` if there is one.

        Args:
            n_envs: Parallel environments per workflow.
            n_workflows: Number of workflows to train.
            train_episodes_per_env: Maximum number of episodes per environment and workflow.
            max_steps: Steps of an episode.
            scenario_path: CAGE 2's scenario; None for Scenario2.
            red_agent_type: The attacker: a class or its name.
            alignment_alpha: The value of full compliance.
            alignment_beta: The cost of full violation.
            gp_beta: Standard deviations that are added to an order's posterior mean.
            checkpoint_dir: The output folder; None for a new one.
            compliance_threshold: Compliance that ends a training early.
            min_episodes: Episodes of each environment before that.
            update_every_steps: Steps of all environments for an update of the policy.
            **more: Every other key of :class:`~ragen.cage2.settings.SearchSettings`.

        Raises:
            ConfigError: A key does not exist, or a value is invalid.
            CheckpointError: The search in the folder cannot be read, or has other settings.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "more")}
        given["checkpoint_dir"] = str(checkpoint_dir or new_folder("outputs/cage2"))
        given["red_agent_type"] = getattr(red_agent_type, "__name__", red_agent_type)
        self.settings = as_model(SearchSettings, {**given, **more})
        self.folder = Path(given["checkpoint_dir"])
        self.search = OrderSearch(gp_beta, self.settings.seed)
        self.results: list[WorkflowResult] = []
        for result in records.read(self.folder, self.settings):
            self._keep(result)

    def run_workflow_search(
        self, on_update: Callable[[WorkflowTraining], object] = lambda training: None
    ) -> list[WorkflowResult]:
        """Search until ``n_workflows`` are trained.

        Finished trainings are saved at once. If the search is interrupted, by Ctrl-C or an exception, only the training
        in progress is lost: the next search in the folder repeats it.

        Args:
            on_update: Called after each update of a policy.

        Returns:
            The results, in the order of iterations.

        Raises:
            CheckpointError: Results cannot be written, or those so far are of another simulator.
            RagenError: The environments cannot be built, or failed.
        """
        settings = self.settings
        mode: Any = settings.use_multiprocessing
        with (
            torch_threads(1),
            ParallelEnvWrapper(
                settings.n_envs,
                settings.scenario_path,
                settings.red_agent_type,
                max_steps=settings.max_steps,
                simulator=settings.simulator,
                cage2_path=settings.cage2_path,
                workers=settings.workers,
                use_multiprocessing=mode,
            ) as envs,
        ):
            if others := {each.simulator for each in self.results} - {envs.simulator}:
                raise CheckpointError(
                    f"the results in {self.folder} are of the simulator {others.pop()!r}, and here plays "
                    f"{envs.simulator!r}: say simulator=..., or give another checkpoint_dir."
                )
            while len(self.results) < settings.n_workflows:
                training = WorkflowTraining(settings, self.search.propose(), len(self.results))
                self._keep(training.play(envs, on_update))
                records.write(self.folder, settings, self.results, training.agent.state_dict())
        return self.results

    def _keep(self, result: WorkflowResult) -> None:
        self.results.append(result)
        self.search.observe(result.workflow, result.train_reward, result.noise)
