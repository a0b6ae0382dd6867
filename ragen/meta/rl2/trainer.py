"""A training run: collect rollouts, update the agent, evaluate it, save, and plot the learning curve.

Everything is determined by the seed and the iteration, so that a resumed run equals an uninterrupted one, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from ragen.errors import CheckpointError, shown_path
from ragen.extras import needs
from ragen.files import json_text, replacing, write_whole
from ragen.meta.acting import Actor
from ragen.meta.agents import MemoryAgent
from ragen.meta.learner import Learner
from ragen.meta.making import make_env, make_parallel_env
from ragen.meta.rl2.bars import bars_of, measure_of
from ragen.meta.rl2.ppo import PPO
from ragen.meta.rl2.settings import RunSettings
from ragen.parallel import Work
from ragen.torch_threads import torch_threads
from ragen.tracking import METRICS_FILE, Loggers, open_loggers
from ragen.validity import check_share, failure_counts

with needs("meta", "an agent of meta-RL"):
    import torch

    from ragen.checkpoints import CheckpointFolder


# The plot


@needs("meta", "a picture of how it went")
def draw_curve(path: Path, history: Sequence[Mapping[str, float]], bars: Mapping[str, float], measure: str) -> Path:
    """Plot a learning curve over environment steps, with reference scores as horizontal lines.

    Args:
        path: The image file.
        history: Metrics of each iteration: ``env_steps``, ``train``, and ``eval`` of some.
        bars: Reference scores by name.
        measure: The name of the measure.

    Returns:
        ``path``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([each["env_steps"] for each in history], [each["train"] for each in history], alpha=0.4, label="training")
    measured = [each for each in history if "eval" in each]
    axes.plot([each["env_steps"] for each in measured], [each["eval"] for each in measured], "o-", label="evaluation")
    for index, (name, value) in enumerate(bars.items()):
        axes.axhline(value, color=f"C{index + 2}", linestyle="--", label=f"{name}: {value:.1f}")
    axes.set_xlabel("environment steps")
    axes.set_ylabel(measure)
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return path


# The run


PHASE = "iteration"
EVALUATION_SEED = 1_000_003  # added to the run's seed for the evaluation's tasks and rollouts

News = Callable[[int, dict[str, float]], None]


class Trainer:
    """One run; a context manager.

    Attributes:
        settings: Its settings.
        folder: The output folder.
        iteration: Number of finished iterations.
        history: Metrics of each.
        bars: Reference scores on the evaluation's tasks, by name.
    """

    def __init__(self, settings: RunSettings) -> None:
        """Build the agent and its environments, and resume from the newest checkpoint if there is one.

        Raises:
            CheckpointError: The checkpoint cannot be read, or is of a run with other settings.
        """
        self.settings = settings
        self.folder = Path(settings.output_dir or "outputs/meta").absolute()
        self.iteration = 0
        self.history: list[dict[str, float]] = []
        self.bars: dict[str, float] = {}
        self._checkpoints = CheckpointFolder(self.folder / "checkpoints", [PHASE], settings.keep)
        self._loggers = Loggers([])
        self._errors: list[str | None] = []  # of each training rollout of this process
        with ExitStack() as opened:
            opened.enter_context(torch_threads(settings.threads))
            self._build(settings, opened)
            self._opened = opened.pop_all()

    def _build(self, settings: RunSettings, opened: ExitStack) -> None:
        env, engine = settings.env, settings.engine
        made = {"start": env.start, "n_tasks": env.n_tasks, **env.arguments}
        self._env = make_env(env.id, env.episodes_per_task, settings.seed, **made)
        opened.callback(self._env.close)
        torch.manual_seed(settings.seed)
        agent = settings.agent
        self.agent: MemoryAgent = MemoryAgent.of(
            self._env,
            hidden=agent.hidden,
            layers=agent.layers,
            rnn=agent.rnn,
            shared=agent.shared,
            initial_std=agent.initial_std,
            products=agent.products,
        )
        self._ppo = PPO(self.agent, settings.ppo)
        self._learner = Learner(self.agent, self._env, seed=settings.seed, forward_batch=settings.forward_batch)
        self._name, self._measure = measure_of(env.id, env.episodes_per_task)
        seed = settings.seed + EVALUATION_SEED
        self._eval_tasks = make_env(env.id, 1, seed, **{**made, "n_tasks": settings.eval_tasks}).tasks.tasks
        self._resume()
        self._parallel_env = make_parallel_env(
            env.id, env.episodes_per_task, engine.num_envs, settings.seed, settings=engine.of_engine(), **made
        )
        opened.callback(self._parallel_env.close)
        self._loggers = opened.enter_context(open_loggers(settings.logger, self.folder))

    def run(
        self, on_iteration: News = lambda iteration, metrics: None, stops: Callable[[], bool] = lambda: False
    ) -> bool:
        """Train until the end, or until asked to stop.

        Args:
            on_iteration: Called after each iteration with its number and metrics.
            stops: Called after each iteration; returns whether to stop.

        Returns:
            Whether the end was reached.

        Raises:
            EnvsFailedError: More than half of the rollouts failed with their environments.
        """
        self._write_bars()
        while self.iteration < self.settings.iterations:
            metrics = self._iterate()
            is_last = self.iteration == self.settings.iterations
            if is_last or self.iteration % self.settings.eval_every == 0:
                metrics["eval"] = self.evaluate()
            self.history.append(metrics)
            self._write_history()
            self._loggers.log({name: float(value) for name, value in metrics.items()}, self.iteration)
            on_iteration(self.iteration, metrics)
            wants_stop = stops() and not is_last
            if is_last or wants_stop or self.iteration % self.settings.save_every == 0:
                self._save()
                self.draw()
            if wants_stop:
                return False
        return True

    def evaluate(self) -> float:
        """The agent's score on the evaluation's tasks."""
        return self._score(None)

    def _score(self, player: Actor | None) -> float:
        """The score of the agent or another player, over the rollouts whose environment did not fail."""
        seed = self.settings.seed + EVALUATION_SEED
        rollouts = self._learner.evaluate(self._eval_tasks or (), seed, self._parallel_env, actor=player)
        check_share([each.error for each in rollouts])
        return self._measure([each for each in rollouts if each.error is None])

    def work(self) -> Work:
        """The time that workers have saved in training and evaluation."""
        return self._parallel_env.work()

    def draw(self) -> Path:
        """Plot the learning curve; returns its path."""
        return draw_curve(self.folder / "learning_curve.png", self.history, self.bars, self._name)

    @property
    def measure(self) -> str:
        """The name of the measure."""
        return self._name

    def _iterate(self) -> dict[str, float]:
        begun, computed = perf_counter(), process_time()
        self._learner.policy_storage.clear()
        steps = self._learner.collect_rollouts_parallel(self.settings.rollouts, parallel_env=self._parallel_env)
        collected = perf_counter()
        errors = [each.error for each in self._learner.last_rollouts]
        self._errors += errors
        played = [each for each in self._learner.last_rollouts if each.error is None]
        check_share(self._errors if played else errors)
        logged = self._ppo.update(
            [each.arrays() for each in played],
            self.iteration / self.settings.iterations,
            (self.settings.seed, self.iteration),
        )
        self.iteration += 1
        return {
            "iteration": self.iteration,
            "env_steps": self._learner._n_env_steps_total,
            "train": self._measure(played),
            **logged,
            "failed": len(errors) - len(played),
            **{f"failed/{name}": count for name, count in failure_counts(errors).items()},
            "collect_s": collected - begun,
            "update_s": perf_counter() - collected,
            "cpu_s": process_time() - computed,
            "steps_per_s": steps / (perf_counter() - begun),
        }

    def _write_bars(self) -> None:
        if not self.bars:
            seed = self.settings.seed + EVALUATION_SEED
            for name, player in bars_of(self.settings.env.id, self._env, seed).items():
                self.bars[name] = self._score(player)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "bars.json").write_text(json_text({"measure": self._name, **self.bars}, indent=1) + "\n")

    def _write_history(self) -> None:
        write_whole(self.folder / METRICS_FILE, "".join(json_text(metrics) + "\n" for metrics in self.history))

    def _save(self) -> None:
        learner = self._learner
        state: dict[str, Any] = {
            "agent": self.agent.state_dict(),
            "optimizer": self._ppo.optimizer.state_dict(),
            "history": self.history,
            "bars": self.bars,
            "counts": [learner._n_env_steps_total, learner._n_rollouts_total, learner._successes_in_buffer],
            "learnt": json.dumps(self.settings.learnt(), sort_keys=True),
        }
        self._checkpoints.save(PHASE, self.iteration, state)

    def _resume(self) -> None:
        state = self._checkpoints.newest()
        if state is None:
            return
        before, now = json.loads(state["learnt"]), json.loads(json.dumps(self.settings.learnt()))
        for name, value in now.items():
            if before.get(name) != value:
                raise CheckpointError(
                    f"the run in {shown_path(self.folder)} had {name} = {before.get(name)!r}, and now it is {value!r}: "
                    "give it what it had, or another output_dir."
                )
        self.agent.load_state_dict(state["agent"])
        self._ppo.optimizer.load_state_dict(state["optimizer"])
        self.iteration, self.history, self.bars = state["step"], state["history"], state["bars"]
        learner = self._learner
        learner._n_env_steps_total, learner._n_rollouts_total, learner._successes_in_buffer = state["counts"]

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
