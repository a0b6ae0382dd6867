"""A search over workflows: propose orders, train with each, tell the search what came of it.

A search is a fold: what is tried next follows from the settings and from the results so far, and what comes of it from
the settings, the order and the number of the iteration. So a search that was stopped goes on to the same end, with any
number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ragen.cage2.order_search import OrderSearch
from ragen.cage2.picture import draw_search
from ragen.cage2.records import SearchRecords
from ragen.cage2.results import WorkflowResult
from ragen.cage2.settings import SearchSettings, settings_of
from ragen.cage2.training import WorkflowTraining, seed_of
from ragen.cage2.workflow import Order, WorkflowManager
from ragen.errors import CheckpointError
from ragen.files import new_folder
from ragen.torch_threads import torch_threads
from ragen.tracking import Loggers, open_loggers

if TYPE_CHECKING:
    from ragen.cage2.wrapper import ParallelEnvWrapper
    from ragen.parallel import Gain, Mode


@dataclass(frozen=True)
class Progress:
    """Where a search is, after an update of a policy.

    Attributes:
        iteration: Which workflow of the search it is, from 0.
        workflow: The order.
        played: Episodes that each of its environments has played.
        is_done: Whether its training has ended.
        update: What was played before the update, and what that learned.
    """

    iteration: int
    workflow: Order
    played: int
    is_done: bool
    update: dict[str, float | None]


class ParallelWorkflowRLTrainer:
    """Searches for the order of fixing whose defender gets most.

    Attributes:
        settings: Its settings.
        folder: Where it writes.
        results: What came of each workflow so far; those of an earlier search in the folder first.
        gain: What workers have gained in this process; None before anything was trained.
        search: What is believed of all orders.
    """

    def __init__(
        self,
        n_envs: int = 25,
        n_workflows: int = 20,
        train_episodes_per_env: int = 50,
        max_steps: int = 100,
        scenario_path: str | None = None,
        red_agent_type: Any = "RedMeanderAgent",
        alignment_alpha: float = 10.0,
        alignment_beta: float = 10.0,
        gp_beta: float = 2.0,
        checkpoint_dir: str | None = None,
        compliance_threshold: float = 0.95,
        min_episodes: int = 10,
        update_every_steps: int = 100,
        *,
        make_envs: Callable[..., ParallelEnvWrapper] | None = None,
        **more: Any,
    ) -> None:
        """Prepare a search, and go on with the one in ``checkpoint_dir`` if there is one.

        Args:
            n_envs: Environments that play a workflow, side by side.
            n_workflows: How many workflows are trained.
            train_episodes_per_env: Episodes of each environment, at most, for a workflow.
            max_steps: Steps of an episode.
            scenario_path: CAGE 2's scenario; None for Scenario2.
            red_agent_type: Who attacks: a class or its name.
            alignment_alpha: What full compliance is worth.
            alignment_beta: What a full violation costs.
            gp_beta: Standard deviations that are added to the mean of what is believed of an order.
            checkpoint_dir: Where everything is written; None for a new folder.
            compliance_threshold: Compliance that ends a training early.
            min_episodes: Episodes of each environment before that.
            update_every_steps: Steps of all environments for an update of the policy.
            make_envs: Builds environments, with the arguments of ``ParallelEnvWrapper``, which it is by default.
            **more: Every other key of :class:`~ragen.cage2.settings.SearchSettings`.

        Raises:
            ConfigError: A key does not exist, or a value cannot work.
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
        self.gain: Gain | None = None
        self._loggers = Loggers([])
        for result in self._records.read(self.settings):
            self._keep(result)

    @property
    def is_done(self) -> bool:
        """Whether as many workflows were trained as were asked for."""
        return len(self.results) >= self.settings.n_workflows

    def run_workflow_search(
        self,
        on_update: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[WorkflowResult]:
        """Search until the end, or until asked to stop.

        Everything is saved whenever trainings are finished. Whatever ends the search before that, an exception too,
        costs the trainings under way alone: the next search in the folder plays them anew.

        Args:
            on_update: Is called after each update of a policy.
            should_stop: Is asked after each update whether to stop.

        Returns:
            The results, in the order of iterations; see ``is_done`` for whether they are all.

        Raises:
            CheckpointError: Results cannot be written, or those so far are of another simulator.
            RagenError: The environments cannot be built, or failed.
        """
        settings = self.settings
        with (
            torch_threads(settings.threads),
            open_loggers(settings.logger, self.folder, settings.project_name) as self._loggers,
            ExitStack() as stack,
        ):
            envs: ParallelEnvWrapper | None = None
            while not self.is_done and not should_stop():
                count = min(settings.parallel_workflows, settings.n_workflows - len(self.results))
                if envs is None or envs.n_envs != count * settings.n_envs:
                    stack.close()
                    envs = stack.enter_context(self._envs(count))
                    stack.callback(self._add_gain, envs)  # before they are closed
                if not self._train(self.search.propose(count), envs, on_update, should_stop):
                    break
        return self.results

    def _add_gain(self, envs: ParallelEnvWrapper) -> None:
        gain = envs.gain()
        self.gain = gain if self.gain is None else self.gain + gain

    def draw(self) -> Path:
        """Draw returns and compliance by order; where it is."""
        return draw_search(self.folder / "returns_by_order.png", self.results)

    def _train(
        self,
        orders: Sequence[Order],
        envs: ParallelEnvWrapper,
        on_update: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> bool:
        """Train with some orders at once, and keep what comes of it; False if asked to stop before the end."""
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
        """Environments for so many trainings, of the simulator that played before."""
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
    """Play until all trainings have ended; whether they have, or it was asked to stop."""
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
