"""A training run: sections and keys of a configuration, with their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragen import settings
from ragen.errors import ConfigError
from ragen.files import new_folder
from ragen.settings import key
from ragen.tracking import check_loggers


@dataclass(frozen=True)
class EnvSettings:
    """The environment.

    Attributes:
        id: Its name with gymnasium.
        episodes_per_task: How many of its episodes are a rollout.
        start: What is observed between two of them; see :class:`~ragen.meta.varibad.VariBadWrapper`.
        n_tasks: How many tasks to learn from; None for new ones all the time.
        arguments: What it is built with.
    """

    id: str = "ragen/Bandit-v0"
    episodes_per_task: int = 1
    start: str = "observe"
    n_tasks: int | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineSettings:
    """Where environments live; see :class:`~ragen.parallel.Settings` for all but the first.

    Attributes:
        num_envs: How many of them there are.
        use_lanes: Whether they live in worker processes.
        max_workers: In how many.
        backend: Of which kind.
    """

    num_envs: int = 64
    use_lanes: bool | str = "auto"
    max_workers: int | None = None
    backend: str = "process"

    def of_engine(self) -> dict[str, Any]:
        """Those of the engine."""
        return {"use_lanes": self.use_lanes, "max_workers": self.max_workers, "backend": self.backend}


@dataclass(frozen=True)
class AgentSettings:
    """The agent; see :class:`~ragen.meta.agents.MemoryAgent`."""

    hidden: int = 128
    layers: int = 1
    rnn: str = "gru"
    shared: bool = True
    initial_std: float = 1.0
    products: bool = False


@dataclass(frozen=True)
class PPOSettings:
    """How it is improved.

    Attributes:
        lr: Learning rate of Adam.
        decay_lr: Whether it falls to 0 over the run, as ``entropy_coef`` always does.
        reward_scale: Rewards are multiplied by it; values should be of the order of 1, since
            actor and critic share weights.
        gamma, lam: Discount, and GAE's lambda.
        center_steps: Whether each step's mean advantage over the rollouts is taken off, and with it what the value does
            not know of time.
        clip: How far a probability may go from what it was, as a share.
        epochs: Passes over the rollouts of an iteration.
        minibatches: Steps of the optimizer in each.
        value_coef, entropy_coef: Weights of half the value's squared error and of the entropy.
        grad_clip: Largest norm of the gradient.
    """

    lr: float = 1e-3
    decay_lr: bool = True
    reward_scale: float = 0.1
    gamma: float = 0.99
    lam: float = 0.95
    center_steps: bool = False
    clip: float = 0.2
    epochs: int = 4
    minibatches: int = 4
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    grad_clip: float = 0.5


@dataclass(frozen=True)
class RunSettings:
    """A training run.

    Attributes:
        env, engine, agent, ppo: Sections of their own.
        seed: What everything follows from.
        iterations: How often rollouts are collected and the agent is improved.
        rollouts: How many each time.
        forward_batch: Rollouts that the agent is asked about at once.
        eval_every: Iterations between two evaluations.
        eval_tasks: Tasks of an evaluation, which are not learned from unless by chance.
        save_every: Iterations between two checkpoints.
        keep: How many checkpoints are kept.
        threads: Of torch.
        logger: Names of :data:`ragen.tracking.PACKAGES`; ``metrics.jsonl`` is always written.
        project_name: For trackers.
        output_dir: Where everything is written; None for a new folder.
    """

    env: EnvSettings = field(default_factory=EnvSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    seed: int = 0
    iterations: int = key(100, low=1)
    rollouts: int = key(64, low=1)
    forward_batch: int = key(64, low=1)
    eval_every: int = key(20, low=1)
    eval_tasks: int = key(256, low=1)
    save_every: int = key(20, low=1)
    keep: int = 2
    threads: int = key(1, low=1)
    logger: list[str] = field(default_factory=list)
    project_name: str = "ragen"
    output_dir: str | None = None

    def __post_init__(self) -> None:
        """Check what could not work.

        Raises:
            ConfigError: Numbers do not fit together, or there is no such logger.
        """
        check_loggers(self.logger, "logger")
        if self.ppo.minibatches > self.rollouts:
            raise ConfigError(
                f"ppo.minibatches = {self.ppo.minibatches}: expected at most the number of rollouts, {self.rollouts}."
            )

    def learnt(self) -> dict[str, Any]:
        """What the weights follow from: all that a run which goes on must have in common with the one before."""
        free = (
            "engine",
            "output_dir",
            "save_every",
            "keep",
            "eval_every",
            "eval_tasks",
            "threads",
            "logger",
            "project_name",
        )
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in free}


def config_names() -> list[str]:
    """The names of the configurations that there are."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def _folder() -> Path:
    return settings.config_directory() / "meta"


def load_settings(name: str, overrides: Sequence[str] = ()) -> RunSettings:
    """A configuration by its name.

    Args:
        name: One of :func:`config_names`.
        overrides: ``key=value``, keys dotted.

    Raises:
        ConfigError: There is no such file or key, or a value cannot work.
    """
    path = _folder() / f"{name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        raise ConfigError(f"no configuration {name!r} in {_folder()}; there are: {', '.join(config_names())}.")
    loaded = settings.load_settings(RunSettings, path, overrides)
    if loaded.output_dir is None:
        loaded = dataclasses.replace(loaded, output_dir=str(new_folder(f"outputs/meta/{path.stem}")))
    return loaded
