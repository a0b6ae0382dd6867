"""The configuration of a training run: sections and keys with their defaults."""

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
        episodes_per_task: Number of its episodes in a rollout.
        start: The observation between two of them; see :class:`~ragen.meta.varibad.VariBadWrapper`.
        n_tasks: Number of training tasks; None for a new one in each rollout.
        arguments: Arguments of the environment.
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
        num_envs: Number of environments.
        use_lanes: Whether they live in worker processes.
        max_workers: Maximum number of workers.
        backend: Kind of workers.
    """

    num_envs: int = 64
    use_lanes: bool | str = "auto"
    max_workers: int | None = None
    backend: str = "process"

    def of_engine(self) -> dict[str, Any]:
        """The settings of the engine."""
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
    """The settings of PPO.

    Attributes:
        lr: Learning rate of Adam.
        decay_lr: Whether it falls to 0 over the run, as ``entropy_coef`` always does.
        reward_scale: Rewards are multiplied by it; values should be of the order of 1, since
            actor and critic share weights.
        gamma, lam: Discount, and GAE's lambda.
        center_steps: Whether each step's mean advantage over the rollouts is subtracted, which removes time effects
            that the value does not capture.
        clip: PPO's clip range of the probability ratio.
        epochs: Passes over the rollouts of an iteration.
        minibatches: Optimizer steps per pass.
        value_coef, entropy_coef: Weights of half the value's squared error and of the entropy.
        grad_clip: Maximum norm of the gradient.
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
        env, engine, agent, ppo: Subsections.
        seed: Seed of the whole run.
        iterations: Number of iterations of collecting rollouts and updating the agent.
        rollouts: Rollouts per iteration.
        forward_batch: Rollouts per forward pass of the agent.
        eval_every: Iterations between two evaluations.
        eval_tasks: Number of tasks of an evaluation, sampled independently of the training tasks.
        save_every: Iterations between two checkpoints.
        keep: Number of checkpoints to keep.
        threads: Threads of torch.
        logger: Names of :data:`ragen.tracking.PACKAGES`; ``metrics.jsonl`` is always written.
        output_dir: The output folder; None for a new one.
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
    output_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Numbers are inconsistent, or there is no such logger.
        """
        check_loggers(self.logger, "logger")
        if self.ppo.minibatches > self.rollouts:
            raise ConfigError(
                f"ppo.minibatches = {self.ppo.minibatches}: expected at most the number of rollouts, {self.rollouts}."
            )

    def learnt(self) -> dict[str, Any]:
        """The settings that determine the weights, which a resumed run must share with the first one."""
        free = (
            "engine",
            "output_dir",
            "save_every",
            "keep",
            "eval_every",
            "eval_tasks",
            "threads",
            "logger",
        )
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in free}


POMDP_BASELINES_KEYS = {
    "env.env_name": "env.id",
    "env.max_rollouts_per_task": "env.episodes_per_task",
    "env.num_train_tasks": "env.n_tasks",
    "env.num_eval_tasks": "eval_tasks",
    "env.num_parallel_workers": "engine.num_envs",
    "train.num_rollouts_per_iter": "rollouts",
}
"""Keys of pomdp-baselines and its forks, with ours in their place; ``env.env_type: meta`` says nothing more."""


def config_names() -> list[str]:
    """The names of the available configurations."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def _folder() -> Path:
    return settings.config_directory() / "meta"


def load_settings(name: str, overrides: Sequence[str] = ()) -> RunSettings:
    """A configuration by its name.

    Args:
        name: One of :func:`config_names`, or the path of a YAML file, which may have :data:`POMDP_BASELINES_KEYS`.
        overrides: ``key=value``, keys dotted.

    Raises:
        ConfigError: There is no such file or key, or a value is invalid.
    """
    path = Path(name)
    if path.suffix != ".yaml" or not path.is_file():
        path = _folder() / f"{name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        raise ConfigError(f"no configuration {name!r} in {_folder()}; there are: {', '.join(config_names())}.")
    loaded = settings.load_settings(RunSettings, path, overrides, _translated)
    if loaded.output_dir is None:
        loaded = dataclasses.replace(loaded, output_dir=str(new_folder(f"outputs/meta/{path.stem}")))
    return loaded


def _translated(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with our keys in the place of pomdp-baselines'."""
    flat = {
        f"{section}.{name}" if isinstance(values, dict) else section: value
        for section, values in config.items()
        for name, value in (values.items() if isinstance(values, dict) else [("", values)])
    }
    if flat.get("env.env_type") == "meta":
        del flat["env.env_type"]
    found: dict[str, Any] = {}
    for given, value in flat.items():
        *sections, name = POMDP_BASELINES_KEYS.get(given, given).split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        if name in place:
            raise ConfigError(
                f"{given} and {POMDP_BASELINES_KEYS.get(given, given)} are the same key; give one of them."
            )
        place[name] = value
    return found
