"""The configuration of a training run: sections and keys with their defaults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from ragen.config import Count, Section, as_model, load_file
from ragen.errors import ConfigError
from ragen.files import config_directory, new_folder


class EnvSettings(Section):
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
    arguments: dict[str, Any] = Field(default_factory=dict)


class EngineSettings(Section):
    """The number of environments, and some settings of :class:`~envlanes.Settings`."""

    num_envs: int = 64
    use_lanes: bool | str = "auto"
    max_workers: int | None = None
    backend: str = "process"


class AgentSettings(Section):
    """The agent; see :class:`~ragen.meta.agents.MemoryAgent`."""

    hidden: int = 128
    products: bool = False


class PPOSettings(Section):
    """The settings of PPO.

    Attributes:
        lr: Learning rate of Adam, which falls to 0 over the run, as ``entropy_coef`` does.
        gamma, lam: Discount, and GAE's lambda.
        center_steps: Whether each step's mean advantage over the rollouts is subtracted, which removes time effects
            that the value does not capture.
        minibatches: Optimizer steps per pass.
        entropy_coef: Weight of the entropy.
    """

    lr: float = 1e-3
    gamma: float = 0.99
    lam: float = 0.95
    center_steps: bool = False
    minibatches: Count = 4
    entropy_coef: float = 0.01


class RunSettings(Section):
    """A training run.

    Attributes:
        env, engine, agent, ppo: Subsections.
        seed: Seed of the whole run.
        iterations: Number of iterations of collecting rollouts and updating the agent.
        rollouts: Rollouts per iteration.
        forward_batch: Rollouts per forward pass of the agent.
        eval_every: Iterations between two evaluations.
        eval_tasks: Number of tasks of an evaluation, sampled independently of the training tasks.
        output_dir: The output folder; a new one by default.
    """

    env: EnvSettings = EnvSettings()
    engine: EngineSettings = EngineSettings()
    agent: AgentSettings = AgentSettings()
    ppo: PPOSettings = PPOSettings()
    seed: int = 0
    iterations: Count = 100
    rollouts: Count = 64
    forward_batch: Count = 64
    eval_every: Count = 20
    eval_tasks: Count = 256
    output_dir: str = ""


POMDP_BASELINES_KEYS = {
    "env.env_name": "env.id",
    "env.max_rollouts_per_task": "env.episodes_per_task",
    "env.num_train_tasks": "env.n_tasks",
    "env.num_eval_tasks": "eval_tasks",
    "env.num_parallel_workers": "engine.num_envs",
    "train.num_rollouts_per_iter": "rollouts",
}
"""Keys of pomdp-baselines and its forks, with ours in their place; ``env.env_type: meta`` says nothing more."""


def load_settings(name: str, overrides: Sequence[str] = ()) -> RunSettings:
    """A configuration by its name.

    Args:
        name: That of a file in ``config/meta``, or the path of a YAML file, which may have
            :data:`POMDP_BASELINES_KEYS`.
        overrides: ``key=value``, keys dotted.

    Raises:
        ConfigError: There is no such file or key, or a value is invalid.
    """
    folder = config_directory() / "meta"
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
        raise ConfigError(f"no configuration {name!r}: expected the path of a .yaml file, or one of {names}.")
    loaded = as_model(RunSettings, _translated(load_file(path, overrides)))
    loaded.output_dir = loaded.output_dir or str(new_folder(f"outputs/meta/{path.stem}"))
    return loaded


def _translated(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with our keys in the place of pomdp-baselines'."""
    for given, ours in POMDP_BASELINES_KEYS.items():
        (section, old), (*sections, new) = given.split("."), ours.split(".")
        if old in config.get(section, {}):
            place = config.setdefault(sections[0], {}) if sections else config
            if new in place:
                raise ConfigError(f"{given} and {ours} are the same key; give one of them.")
            place[new] = config[section].pop(old)
    if config.get("env", {}).get("env_type") == "meta":
        del config["env"]["env_type"]
    if config.get("train") == {}:
        del config["train"]
    return config
