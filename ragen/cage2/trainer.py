"""A search over workflows: propose an order, train with it, report the result to the search.

The next proposal depends only on the settings and the results so far, and a training only on the settings, the order
and the iteration. A resumed search therefore has the same results as an uninterrupted one, with any number of workers.
One training of a workflow is a :class:`WorkflowTraining`.

``search.json`` holds the state from which a search resumes: settings, and the result of each finished workflow.
``results.json`` is derived from it for readers. ``policies/`` has the policy of each workflow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
from pydantic import Field

from ragen.cage2.env import Cage2Config
from ragen.cage2.order_search import OrderSearch
from ragen.cage2.ppo import ParallelOrderConditionedPPO
from ragen.cage2.workflow import DEFINITIONS
from ragen.cage2.wrapper import ParallelEnvWrapper
from ragen.checkpoints import save
from ragen.config import Amount, Count, Natural, Section, Share, as_model
from ragen.errors import CheckpointError, EnvError
from ragen.files import json_text, new_folder, write_whole
from ragen.torch_threads import torch_threads
from ragen.validity import check_share, env_error, failures_in_words, is_valid

LEAST_FIXES = 10  # fixes of a whole training, before its rate of compliance is used
LAST = 5  # last episodes of each environment, over which a result is averaged

FREE = ("checkpoint_dir", "n_workflows", "workers", "use_multiprocessing", "cage2_path")
"""Settings that a resumed search may change: its folder, its length, and those that only affect speed."""


class SearchSettings(Section):
    """A search over workflows.

    Attributes:
        n_envs: Parallel environments per workflow; at least two, since the noise is estimated from their spread.
        n_workflows: Number of workflows to train.
        train_episodes_per_env: Maximum number of episodes per environment and workflow.
        max_steps: Steps of an episode.
        scenario_path: CAGE 2's scenario; None for Scenario2.
        red_agent_type: The attacker.
        alignment_alpha, alignment_beta: The reward for compliance; see :mod:`ragen.cage2.workflow`.
        gp_beta: Standard deviations that are added to an order's posterior mean.
        checkpoint_dir: The folder to write to and to resume from; a new one by default.
        compliance_threshold: A training ends early if the mean over environments of the last five episodes' compliance
            reaches it.
        min_episodes: Minimum number of episodes of each environment before that.
        update_every_steps: Steps of all environments for an update of the policy.
        compliance_definition: The fixes that comply.
        lr, gamma, k_epochs, eps_clip: Hyperparameters of PPO.
        seed: Seed of the whole search.
        simulator: "embedded", "cage2", or "auto": CAGE 2 if found.
        cage2_path: Path of CAGE 2.
        workers, use_multiprocessing: Placement of environments; see ``ParallelEnvWrapper``.
    """

    n_envs: Annotated[int, Field(ge=2)] = 25
    n_workflows: Count = 20
    train_episodes_per_env: Count = 50
    max_steps: Count = 100
    scenario_path: str | None = None
    red_agent_type: str = "RedMeanderAgent"
    alignment_alpha: Amount = 50.0
    alignment_beta: Amount = 50.0
    gp_beta: Amount = 2.0
    checkpoint_dir: str | None = None
    compliance_threshold: Share = 0.95
    min_episodes: Count = 10
    update_every_steps: Count = 25
    compliance_definition: Literal[DEFINITIONS] = "first_compromised"  # type: ignore[valid-type]
    lr: float = 0.002
    gamma: float = 0.99
    k_epochs: Count = 8
    eps_clip: float = 0.2
    seed: Natural = 0
    simulator: str = "auto"
    cage2_path: str | None = None
    workers: int | None = None
    use_multiprocessing: bool | Literal["auto"] = "auto"

    def followed(self) -> dict[str, Any]:
        """The settings that determine the results, which a resumed search must share with the first one."""
        return {name: value for name, value in self if name not in FREE}


class Episode(NamedTuple):
    """A finished episode.

    Attributes:
        reward: The sum of the environment's rewards, without those for compliance.
        rate: The fraction of its fixes that complied with the workflow.
        fixes: Number of fixes.
    """

    reward: float
    rate: float
    fixes: int


@dataclass(frozen=True)
class WorkflowResult:
    """The result of training with a workflow.

    Attributes:
        iteration: Index of the training in the search, from 0.
        workflow: The order.
        train_reward: Mean over environments of the mean return of their last five episodes, without rewards for
            compliance.
        noise: Its standard error over environments, without the variance between trainings.
        train_compliance: The same mean of the rate of compliance, where an episode without fixes counts 0.5.
        coverage: The same mean of fixes per episode; if it is small, the rate is not informative.
        avg_episodes_trained: Mean over environments of episodes played.
        stopped_early: Whether it ended because it complied.
        failed_episodes: Episodes ended by an error of the environment, which are counted nowhere else.
        n_envs: Number of environments.
        simulator: "embedded" or "cage2".
    """

    iteration: int
    workflow: list[str]
    train_reward: float
    noise: float
    train_compliance: float
    coverage: float
    avg_episodes_trained: float
    stopped_early: bool
    failed_episodes: int
    n_envs: int
    simulator: str


def over_last(episodes: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """Means over the last five episodes of environments; those without episodes are ignored.

    Args:
        episodes: The episodes of each environment, in order.

    Returns:
        ``train_reward``, ``noise``, ``train_compliance`` and ``coverage``, as in :class:`WorkflowResult`. The noise of
        less than two environments is NaN.
    """
    means = np.array([np.mean(each[-LAST:], axis=0) for each in episodes if each])
    if len(means) < 2:
        return {"noise": math.nan}
    noise = means[:, 0].std(ddof=1) / math.sqrt(len(means))
    names = ("train_reward", "train_compliance", "coverage")
    return {"noise": float(noise), **dict(zip(names, means.mean(0).tolist(), strict=True))}


class WorkflowTraining:
    """One training of a workflow.

    Attributes:
        iteration: Its index in the search.
        agent: The agent.
        episodes: The finished episodes of each environment.
        errors: The reason of failure of each finished episode; None for the others.
    """

    def __init__(self, settings: SearchSettings, order: Sequence[str], iteration: int) -> None:
        """Create a new policy for a workflow."""
        self.settings, self.iteration = settings, iteration
        self._seed = crc32(f"{settings.seed} {iteration}".encode())
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
            seed=self._seed,
        )
        self.episodes: list[list[Episode]] = [[] for _ in range(settings.n_envs)]
        self.errors: list[str | None] = []
        self._ended = [0] * settings.n_envs

    def play(self, envs: ParallelEnvWrapper, on_update: Callable[[WorkflowTraining], object]) -> WorkflowResult:
        """Train in environments until it complies, or has played its episodes.

        Args:
            envs: The environments.
            on_update: Called after each update of the policy.

        Raises:
            EnvsFailedError: More than half of the episodes so far failed with their environments.
            EnvError: Too many episodes failed for a result.
        """
        states = envs.reset(self._seed)
        while not (stopped_early := self.complies()) and self.played < self.settings.train_episodes_per_env:
            while not self.agent.should_update:
                chosen = self.agent.get_actions(states)
                states, rewards, dones, infos = envs.step(chosen)
                for env_id, ended in enumerate(self.agent.record(chosen, rewards, dones, infos)):
                    if ended is not None:
                        self.errors.append(env_error(infos[env_id]))
                        self._ended[env_id] += 1
                        if is_valid(infos[env_id]):
                            self.episodes[env_id].append(Episode(infos[env_id]["episode"]["r"], *ended))
            check_share(self.errors)
            self.agent.update(states)
            on_update(self)
        last, failed = over_last(self.episodes), [*filter(None, self.errors)]
        if not math.isfinite(last["noise"]):
            raise EnvError(
                f"of workflow {' > '.join(self.agent.workflow_order)}, {len(failed)} episodes failed "
                f"({failures_in_words(failed)}), and fewer than two environments have one that did not: there is no "
                "result."
            )
        return WorkflowResult(
            iteration=self.iteration,
            workflow=list(self.agent.workflow_order),
            **last,
            avg_episodes_trained=float(np.mean([len(each) for each in self.episodes])),
            stopped_early=stopped_early,
            failed_episodes=len(failed),
            n_envs=self.settings.n_envs,
            simulator=envs.simulator,
        )

    @property
    def played(self) -> int:
        """Episodes, including failed ones, of the environment that has played fewest."""
        return min(self._ended)

    def complies(self) -> bool:
        """Whether the training may end early.

        Each environment must have played ``min_episodes``; there must be at least ten fixes; and the mean over
        environments of the last five episodes' rates must be at least ``compliance_threshold``.
        """
        fixes = sum(episode.fixes for each in self.episodes for episode in each)
        if min(map(len, self.episodes)) < self.settings.min_episodes or fixes < LEAST_FIXES:
            return False
        return over_last(self.episodes)["train_compliance"] >= self.settings.compliance_threshold


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
            **more: Every other key of :class:`SearchSettings`.

        Raises:
            ConfigError: A key does not exist, or a value is invalid.
            CheckpointError: The search in the folder cannot be read, or has other settings.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "more")}
        given["checkpoint_dir"] = str(checkpoint_dir or new_folder("outputs/cage2"))
        given["red_agent_type"] = getattr(red_agent_type, "__name__", red_agent_type)
        settings = self.settings = as_model(SearchSettings, {**given, **more})
        config = Cage2Config(red_agent_type, max_steps, settings.simulator, settings.cage2_path, scenario_path)
        settings.simulator = config.simulator  # the one that is found, which a resumed search must share
        self.folder = Path(given["checkpoint_dir"])
        self.search = OrderSearch(gp_beta, self.settings.seed)
        self.results: list[WorkflowResult] = []
        for result in _read(self.folder, self.settings):
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
            CheckpointError: Results cannot be written.
            RagenError: The environments cannot be built, or failed.
        """
        settings = self.settings
        names = {"n_envs", "scenario_path", "red_agent_type", "max_steps", "simulator", "cage2_path", "workers"}
        given = settings.model_dump(include=names | {"use_multiprocessing"})
        with torch_threads(1), ParallelEnvWrapper(**given) as envs:
            while len(self.results) < settings.n_workflows:
                training = WorkflowTraining(settings, self.search.propose(), len(self.results))
                self._keep(training.play(envs, on_update))
                policy = {"policy": training.agent.policy.state_dict(), "workflow": list(training.agent.workflow_order)}
                _write(self.folder, settings, self.results, policy)
        return self.results

    def _keep(self, result: WorkflowResult) -> None:
        self.results.append(result)
        self.search.observe(result.workflow, result.train_reward, result.noise)


def _read(folder: Path, settings: SearchSettings) -> list[WorkflowResult]:
    """The results of the search in a folder; empty if there is none.

    Raises:
        CheckpointError: They cannot be read, or belong to a search with other settings.
    """
    path = folder / "search.json"
    if not path.exists():
        return []
    try:
        state = json.loads(path.read_text("utf-8"))
        before, results = state["settings"], [WorkflowResult(**each) for each in state["results"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: remove it, or give another checkpoint_dir.") from error
    for name, value in settings.followed().items():
        if before.get(name) != value:
            raise CheckpointError(
                f"the search in {folder} had {name} = {before.get(name)!r}, and now it is {value!r}: give it what it "
                "had, or another checkpoint_dir."
            )
    return results


def _write(folder: Path, settings: SearchSettings, results: Sequence[WorkflowResult], policy: dict[str, Any]) -> None:
    """Write the policy of the last result, then all results so far.

    Raises:
        CheckpointError, OSError: They cannot be written; the old files are unchanged.
    """
    rows = [asdict(each) for each in results]
    save(folder / "policies" / f"workflow_{results[-1].iteration:03d}.pt", policy)
    for name, value in {"search": {"settings": settings.followed(), "results": rows}, "results": rows}.items():
        write_whole(folder / f"{name}.json", json_text(value, indent=1) + "\n", durable=True)
