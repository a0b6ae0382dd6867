"""A search over workflows: propose orders, train with each, report the results to the search.

The next proposal depends only on the settings and the results so far, and a training only on the settings, the order
and the iteration. A resumed search therefore has the same results as an uninterrupted one, with any number of workers.
One training of a workflow is a :class:`WorkflowTraining`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ragen.cage2.order_search import OrderSearch
from ragen.cage2.ppo import ParallelOrderConditionedPPO
from ragen.cage2.results import Episode, SearchRecords, WorkflowResult, draw_search, over_last
from ragen.cage2.settings import SearchSettings, settings_of
from ragen.cage2.workflow import Order, WorkflowManager, order_text
from ragen.errors import CheckpointError, EnvError
from ragen.files import new_folder
from ragen.torch_threads import torch_threads
from ragen.tracking import Loggers, open_loggers
from ragen.validity import check_share, env_error, failure_counts, failures_in_words

if TYPE_CHECKING:
    from ragen.cage2.wrapper import ParallelEnvWrapper
    from ragen.parallel import Mode, Work


# One training


LEAST_FIXES = 10  # fixes of a whole training, before its rate of compliance is used
SLEEP = 0  # the action of finished trainings


class WorkflowTraining:
    """One training: receives its environments' observations, and chooses actions.

    Attributes:
        iteration: Its index in the search.
        agent: The agent.
        episodes: The finished episodes of each environment.
        is_done: Whether it has ended.
    """

    def __init__(
        self, settings: SearchSettings, order: Sequence[str], iteration: int, manager: WorkflowManager | None = None
    ) -> None:
        """Create a new policy for a workflow."""
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
        self._fixes = 0
        self._errors: list[str | None] = []  # of each finished episode
        self._ended = np.zeros(settings.n_envs, np.int64)
        self._returns = np.zeros(settings.n_envs)
        self._since_update: list[Episode] = []
        self._updates: list[dict[str, float | None]] = []
        self._chosen: Any = None  # the agent's last actions

    def act(self, states: np.ndarray) -> np.ndarray:
        """Actions for the environments, ``(n,)``; sleep after the training has ended.

        Args:
            states: Observations, ``(n, 52)``.
        """
        if self.is_done:
            return np.full(self.settings.n_envs, SLEEP)
        self._chosen = self.agent.get_actions(states)
        return self._chosen

    def learn(
        self, next_states: np.ndarray, rewards: np.ndarray, dones: np.ndarray, infos: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Process the results of the actions; returns whether the policy was updated.

        Args:
            next_states: The new observations, ``(n, 52)``.
            rewards: The rewards, ``(n,)``.
            dones: Whether an episode ended, ``(n,)``.
            infos: The environments' infos.

        Raises:
            EnvsFailedError: More than half of the episodes so far failed with their environments.
        """
        if self.is_done:
            return False
        ended = self.agent.record(self._chosen, rewards, dones, infos)
        self._returns += rewards
        for env_id, compliance in enumerate(ended):
            if compliance is None:
                continue
            self._ended[env_id] += 1
            self._errors.append(env_error(infos[env_id]))
            if self._errors[-1] is None:
                episode = Episode(float(self._returns[env_id]), compliance)
                self.episodes[env_id].append(episode)
                self._since_update.append(episode)
                self._fixes += compliance.fixes
            self._returns[env_id] = 0.0
        if not self.agent.should_update:
            return False
        check_share(self._errors)
        self._note(self.agent.update(next_states))
        self._stopped_early = self.complies()
        self.is_done = self._stopped_early or self.played >= self.settings.train_episodes_per_env
        return True

    @property
    def played(self) -> int:
        """Episodes, including failed ones, of the environment that has played fewest."""
        return int(self._ended.min())

    def complies(self) -> bool:
        """Whether the training may end early.

        Each environment must have played ``min_episodes``; there must be at least ten fixes; and the mean over
        environments of the last five episodes' rates must be at least ``compliance_threshold``, where an episode
        without a fix counts 0.5.
        """
        enough = min(len(each) for each in self.episodes) >= self.settings.min_episodes
        if not enough or self._fixes < LEAST_FIXES:
            return False
        return over_last(self.episodes)["compliance"] >= self.settings.compliance_threshold

    def last_update(self) -> dict[str, float | None]:
        """Metrics of the steps before the last update and of the update; empty before the first."""
        return self._updates[-1] if self._updates else {}

    def result(self, simulator: str) -> WorkflowResult:
        """The result of the training.

        Args:
            simulator: The simulator of the environments.

        Raises:
            EnvError: Too many episodes failed for a result.
        """
        last, failures = over_last(self.episodes), failure_counts(self._errors)
        if not math.isfinite(last["noise"]):
            raise EnvError(
                f"of workflow {order_text(self.agent.workflow_order)}, {sum(failures.values())} episodes failed "
                f"({failures_in_words(self._errors)}), and fewer than two environments have one that did not: there is "
                "no result."
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
            failed_episodes=sum(failures.values()),
            failures=failures,
            n_envs=self.settings.n_envs,
            simulator=simulator,
            updates=self._updates,
        )

    def _note(self, learned: Mapping[str, float]) -> None:
        means = over_last([[each] for each in self._since_update])
        seen = {name: None if math.isnan(means[name]) else means[name] for name in ("reward", "compliance", "coverage")}
        self._updates.append({"episodes": float(np.mean([len(each) for each in self.episodes])), **seen, **learned})
        self._since_update.clear()


def seed_of(seed: int, iteration: int, purpose: str) -> int:
    """A seed for a part of a search, independent of all others."""
    return int(np.random.SeedSequence([seed, iteration, *purpose.encode()]).generate_state(1)[0])


# The search


@dataclass(frozen=True)
class Progress:
    """The progress of a search after an update of a policy.

    Attributes:
        iteration: Index of the workflow in the search, from 0.
        workflow: The order.
        played: Episodes played by each of its environments.
        is_done: Whether its training has ended.
        update: Metrics of the steps before the update and of the update.
    """

    iteration: int
    workflow: Order
    played: int
    is_done: bool
    update: dict[str, float | None]


class ParallelWorkflowRLTrainer:
    """Searches for the workflow whose defender has the highest return.

    Attributes:
        settings: Its settings.
        folder: The output folder.
        results: Results so far, starting with those of an earlier search in the folder.
        work: What environments did in this process; None before anything was trained.
        search: The Bayesian optimization.
    """

    def __init__(
        self,
        n_envs: int = 25,
        n_workflows: int = 20,
        train_episodes_per_env: int = 50,
        max_steps: int = 100,
        scenario_path: str | None = None,
        red_agent_type: Any = "RedMeanderAgent",
        alignment_alpha: float = 50.0,
        alignment_beta: float = 50.0,
        gp_beta: float = 2.0,
        checkpoint_dir: str | None = None,
        compliance_threshold: float = 0.95,
        min_episodes: int = 10,
        update_every_steps: int = 25,
        *,
        make_envs: Callable[..., ParallelEnvWrapper] | None = None,
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
            make_envs: Builds environments; by default ``ParallelEnvWrapper``, whose arguments it takes.
            **more: Every other key of :class:`~ragen.cage2.settings.SearchSettings`.

        Raises:
            ConfigError: A key does not exist, or a value is invalid.
            CheckpointError: The search in the folder cannot be read, or has other settings.
        """
        self.settings: SearchSettings = settings_of(
            {
                "n_envs": n_envs,
                "n_workflows": n_workflows,
                "train_episodes_per_env": train_episodes_per_env,
                "max_steps": max_steps,
                "scenario_path": None if scenario_path is None else str(scenario_path),
                "red_agent_type": red_agent_type,
                "alignment_alpha": alignment_alpha,
                "alignment_beta": alignment_beta,
                "gp_beta": gp_beta,
                "checkpoint_dir": str(new_folder("outputs/cage2") if checkpoint_dir is None else checkpoint_dir),
                "compliance_threshold": compliance_threshold,
                "min_episodes": min_episodes,
                "update_every_steps": update_every_steps,
                **more,
            }
        )
        self.folder = Path(str(self.settings.checkpoint_dir))
        self._red_agent_type = red_agent_type
        self._make_envs = make_envs
        self._manager = WorkflowManager()
        self._records = SearchRecords(self.folder)
        self.search = OrderSearch(gp_beta, self.settings.seed, self._manager)
        self.results: list[WorkflowResult] = []
        self.work: Work | None = None
        self._loggers = Loggers([])
        for result in self._records.read(self.settings):
            self._keep(result)

    @property
    def is_done(self) -> bool:
        """Whether all ``n_workflows`` were trained."""
        return len(self.results) >= self.settings.n_workflows

    def run_workflow_search(
        self,
        on_update: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[WorkflowResult]:
        """Search until the end, or until asked to stop.

        Finished trainings are saved at once. If the search is interrupted, also by an exception, only the trainings in
        progress are lost: the next search in the folder repeats them.

        Args:
            on_update: Called after each update of a policy.
            should_stop: Called after each update; returns whether to stop.

        Returns:
            The results, in the order of iterations; see ``is_done`` for whether they are all.

        Raises:
            CheckpointError: Results cannot be written, or those so far are of another simulator.
            RagenError: The environments cannot be built, or failed.
        """
        settings = self.settings
        with (
            torch_threads(settings.threads),
            open_loggers(settings.logger, self.folder) as self._loggers,
            ExitStack() as stack,
        ):
            envs: ParallelEnvWrapper | None = None
            while not self.is_done and not should_stop():
                count = min(settings.parallel_workflows, settings.n_workflows - len(self.results))
                if envs is None or envs.n_envs != count * settings.n_envs:
                    stack.close()
                    envs = stack.enter_context(self._envs(count))
                    stack.callback(self._add_work, envs)  # before they are closed
                if not self._train(self.search.propose(count), envs, on_update, should_stop):
                    break
        return self.results

    def _add_work(self, envs: ParallelEnvWrapper) -> None:
        work = envs.work()
        self.work = work if self.work is None else self.work + work

    def draw(self) -> Path:
        """Plot returns and compliance by order; returns the file's path."""
        return draw_search(self.folder / "returns_by_order.png", self.results)

    def _train(
        self,
        orders: Sequence[Order],
        envs: ParallelEnvWrapper,
        on_update: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> bool:
        """Train with several orders at once, and store the results; returns False if stopped before the end."""
        first = len(self.results)
        trainings = [
            WorkflowTraining(self.settings, order, first + place, self._manager) for place, order in enumerate(orders)
        ]
        if not _play(trainings, envs, seed_of(self.settings.seed, first, "environments"), on_update, should_stop):
            return False
        results = [training.result(envs.simulator) for training in trainings]
        for training, result in zip(trainings, results, strict=True):
            self._records.write_policy(result.iteration, training.agent.state_dict())
            self._keep(result)
        self._records.write(self.settings, self.results)
        self.draw()
        return True

    def _envs(self, trainings: int) -> ParallelEnvWrapper:
        """Environments for a number of trainings, of the same simulator as earlier results."""
        from ragen.cage2.wrapper import ParallelEnvWrapper

        settings = self.settings
        envs = (self._make_envs or ParallelEnvWrapper)(
            settings.n_envs * trainings,
            settings.scenario_path,
            self._red_agent_type,
            max_steps=settings.max_steps,
            simulator=settings.simulator,
            cage2_path=settings.cage2_path,
            bugs=settings.bugs,
            workers=settings.workers,
            backend=settings.backend,
            use_multiprocessing=cast("Mode", settings.use_multiprocessing),
        )
        others = {each.simulator for each in self.results} - {envs.simulator}
        if others:
            envs.close()
            raise CheckpointError(
                f"the results in {self.folder} are of the simulator {others.pop()!r}, and here plays "
                f"{envs.simulator!r}: say simulator=..., or give another checkpoint_dir."
            )
        return envs

    def _keep(self, result: WorkflowResult) -> None:
        self.results.append(result)
        self.search.observe(result.workflow, result.train_reward, result.noise)
        numbers = ("train_reward", "noise", "train_compliance", "coverage", "avg_episodes_trained", "failed_episodes")
        self._loggers.log({name: float(getattr(result, name)) for name in numbers}, result.iteration)


def _play(
    trainings: Sequence[WorkflowTraining],
    envs: ParallelEnvWrapper,
    seed: int,
    on_update: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> bool:
    """Play until all trainings have ended; returns False if stopped before."""
    n = trainings[0].settings.n_envs
    rows = [slice(place * n, (place + 1) * n) for place in range(len(trainings))]
    states = envs.reset(seed)
    while not all(each.is_done for each in trainings):
        actions = np.concatenate([each.act(states[part]) for each, part in zip(trainings, rows, strict=True)])
        states, rewards, dones, infos = envs.step(actions)
        updated = False
        for each, part in zip(trainings, rows, strict=True):
            if each.learn(states[part], rewards[part], dones[part], infos[part]):
                updated = True
                order = each.agent.workflow_order
                on_update(Progress(each.iteration, order, each.played, each.is_done, each.last_update()))
        if updated and should_stop() and not all(each.is_done for each in trainings):
            return False
    return True
