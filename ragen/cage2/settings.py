"""The settings of a search: the keys of ``config/cage2/search.yaml``, with their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragen import settings
from ragen.cage2.workflow import DEFINITIONS
from ragen.errors import ConfigError
from ragen.settings import key

FREE = ("checkpoint_dir", "n_workflows", "workers", "use_multiprocessing", "cage2_path")
"""Settings that a resumed search may change: its folder, its length, and those that only affect speed."""


@dataclass(frozen=True)
class SearchSettings:
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
        compliance_definition: Which fixes comply.
        lr, gamma, k_epochs, eps_clip: Hyperparameters of PPO.
        seed: Seed of the whole search.
        simulator: "embedded", "cage2", or "auto": CAGE 2 if found.
        cage2_path: Path of CAGE 2.
        workers, use_multiprocessing: Placement of environments; see ``ParallelEnvWrapper``.
    """

    n_envs: int = key(25, low=2)
    n_workflows: int = key(20, low=1)
    train_episodes_per_env: int = key(50, low=1)
    max_steps: int = key(100, low=1)
    scenario_path: str | None = None
    red_agent_type: str = "RedMeanderAgent"
    alignment_alpha: float = key(50.0, low=0)
    alignment_beta: float = key(50.0, low=0)
    gp_beta: float = key(2.0, low=0)
    checkpoint_dir: str | None = None
    compliance_threshold: float = key(0.95, low=0, high=1)
    min_episodes: int = key(10, low=1)
    update_every_steps: int = key(25, low=1)
    compliance_definition: str = key("first_compromised", allowed=DEFINITIONS)
    lr: float = 0.002
    gamma: float = 0.99
    k_epochs: int = key(8, low=1)
    eps_clip: float = 0.2
    seed: int = key(0, low=0)
    simulator: str = "auto"
    cage2_path: str | None = None
    workers: int | None = None
    use_multiprocessing: bool | str = key("auto", allowed=(True, False, "auto"))

    def __post_init__(self) -> None:
        """Refuse a training without an update.

        Raises:
            ConfigError: There is none.
        """
        steps = self.train_episodes_per_env * self.max_steps
        if self.update_every_steps > steps:
            raise ConfigError(
                f"update_every_steps = {self.update_every_steps}: expected at most train_episodes_per_env * max_steps "
                f"= {steps}, else nothing is ever learnt."
            )

    def followed(self) -> dict[str, Any]:
        """The settings that determine the results, which a resumed search must share with the first one."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in FREE}


def load_settings(overrides: Sequence[str] = ()) -> SearchSettings:
    """The configuration of a search.

    Args:
        overrides: ``key=value``.

    Raises:
        ConfigError: There is no such key, or a value is invalid.
    """
    return settings.load_settings(SearchSettings, settings.config_directory() / "cage2" / "search.yaml", overrides)
